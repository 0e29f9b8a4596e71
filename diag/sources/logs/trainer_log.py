"""Lines of Hugging Face Trainer and DeepSpeed that show the phase, a step or a save, and progress bars
without a name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model import observations as facts
from diag.sources.logs.printed import numbers_of, phase_of

# transformers 4.57.6 Trainer (trainer_callback.py), stdout of rank 0, whatever the log level is; two gloo
# ranks, 2026-11-21:
#   {'loss': 4.3605, 'grad_norm': 1.9662383794784546, 'learning_rate': 4.375e-05, 'epoch': 0.04}
#   {'eval_loss': 4.329410076141357, 'eval_runtime': 0.0101, ..., 'epoch': 0.08}
#   {'train_runtime': 0.2309, 'train_samples_per_second': 138.613, ..., 'train_loss': 4.323827266693115, 'epoch': 0.16}
# transformers 5 (source) writes the numbers as strings: {'loss': '4.36', ..., 'epoch': '0.04'}
_METRICS = re.compile(r"\{'(?:loss|eval_\w{1,60}|train_runtime)': [^{}]{0,4000}\}")

# transformers 4.57.6, trainer.py, logging level INFO, stderr of rank 0:
#     Total optimization steps = 8
_PLANNED = re.compile(r"^\s{0,4}Total optimization steps = ([\d,]{1,20})\s*$")
#   Saving model checkpoint to /out/checkpoint-4            (printed BEFORE it is written; nothing says that it was)
_HF_SAVE = re.compile(r"(?<!\[INFO:swift\] )Saving model checkpoint to (\S+)")

# DeepSpeed 0.16.9, `deepspeed --num_gpus 2`, two gloo ranks, 2026-11-21, stderr of rank 0:
#   [2026-11-21 13:18:22,738] [INFO] [logging.py:107:log_dist] [Rank 0] step=2, skipped=0, lr=[0.01], mom=[0]
_DS_STEP = re.compile(r"\[Rank 0\] step=(\d{1,9}), skipped=\d")
#   [...] [INFO] [logging.py:107:log_dist] [Rank 0] [Torch] Checkpoint global_step4 is about to be saved!
#   [...] [INFO] [logging.py:107:log_dist] [Rank 0] Saving model checkpoint: /ck/global_step4/mp_rank_00_model_states.pt
_DS_SAVE = re.compile(
    r"\[Rank 0\] (?:\[\w+\] Checkpoint (\S+) is about to be saved!|Saving model checkpoint: (\S+))"
)
#   [...] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step4 is ready now!
_DS_SAVED = re.compile(r"\[\w+\] Checkpoint (\S+) is ready now!")
# ninja below torch 2.13 utils/cpp_extension.py, an operator that DeepSpeed builds when it is first used:
#   [1/3] c++ -MMD -MF shm.o.d -DTORCH_EXTENSION_NAME=deepspeed_shm_comm ...
_NINJA = re.compile(r"^\[\d{1,4}/\d{1,4}\] \S{0,200}(?:c\+\+|g\+\+|nvcc|clang\+\+|hipcc)\S{0,20} ")

# tqdm 4.66 without a description, stderr: the bars of transformers' Trainer, for training as for evaluation:
#    25%|██▌       | 2/8 [00:00<00:00, 20.99it/s]
#    50%|#####     | 4/8 [00:00<?, ?it/s]
_BAR = re.compile(r"(?:\x1b\[A|\s){0,8}(\d{1,3})%\|[^|\r\n]{0,400}\| (\d{1,15})/(\d{1,15}) \[")


# One of these, or of phases.yaml, is in each line that has a fact here: what a large log is searched for.
WORDS: tuple[str, ...] = (
    "%|", "{'", "Checkpoint ", "Saving model checkpoint", "[Rank 0] step=", "Total optimization steps", "c++", "g++", "nvcc",
    "hipcc",
)  # fmt: skip


def read_line(text: str, rank: int | None) -> Iterator[facts.Observation]:
    """Facts in one line. Costs a few substring searches for a line that says nothing."""
    if "%|" in text[:60]:  # a bar that another line was printed behind, or its last drawing
        yield from read_bar(text, rank)
    if "{'" in text:
        yield from read_metrics(text, rank)
        return
    if "Checkpoint " in text or "Saving model checkpoint" in text:
        yield from _save(text, rank)
        return
    if "[Rank 0] step=" in text:
        match = _DS_STEP.search(text)
        if match and int(match[1]):
            yield facts.Iteration(rank, int(match[1]), 0, text.strip())
        elif match:  # printed by deepspeed.initialize, before any step
            yield facts.PhaseMarked(rank, "first_step", text.strip())
        return
    if "Total optimization steps" in text:
        match = _PLANNED.match(text)
        if match and match[1].strip(","):
            yield facts.StepsPlanned(rank, int(match[1].replace(",", "")), text.strip())
        return
    if text.startswith("[") and _NINJA.match(text):
        yield facts.PhaseMarked(rank, "compile", text.strip()[:300])
        return
    if (phase := phase_of(text, "trainer")) is not None:
        yield facts.PhaseMarked(rank, phase, text.strip()[:300])


def _save(text: str, rank: int | None) -> Iterator[facts.Observation]:
    if match := _DS_SAVED.search(text):
        yield facts.SaveFinished(rank, text.strip(), match[1])
        return
    match = _DS_SAVE.search(text) or _HF_SAVE.search(text)
    if match:
        yield facts.SaveStarted(rank, text.strip(), next((path for path in match.groups() if path), ""))


def read_metrics(text: str, rank: int | None) -> Iterator[facts.Observation]:
    """The numbers of a dict that a Trainer prints without its step. A torn one, or one that is none, says
    nothing."""
    match = _METRICS.search(text)
    if match is None or "'epoch':" not in match[0]:
        return
    if match[0].startswith("{'loss'") and "'global_step/max_steps':" in match[0]:
        return  # ms-swift shows the step too: swift_log
    numbers = numbers_of(match[0])
    if any(name.startswith(("loss", "eval_", "train_")) for name, _ in numbers):
        yield facts.MetricsLogged(rank, numbers, match[0])


def read_bar(text: str, rank: int | None) -> Iterator[facts.Observation]:
    """A bar without a name: which one it is, the job's state knows from the planned steps and from what is
    printed between."""
    match = _BAR.match(text[:1000])
    if match is not None and int(match[1]) <= 100:
        yield facts.BarMoved(rank, int(match[2]), int(match[3]), match[0].strip("\x1b[A \t"))
