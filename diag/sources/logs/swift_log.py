"""Lines of ms-swift and Megatron-LM that show the phase, a step or a save."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model import observations as facts
from diag.sources.logs.printed import numbers_of, phase_of

# ms-swift 3.7-4.6, swift/megatron/trainers/base.py, stderr; printed BEFORE the first batch is fetched:
#   [INFO:swift] The training of Epoch 0 starts...
_EPOCH = re.compile(r"The training of Epoch (\d{1,9}) starts\.\.\.")

# ms-swift 4.6.0, swift/megatron/callbacks/print.py, stdout of the last rank (a bar's blanks may come before
# it):
#   {'loss': 0.69314718, ..., 'grad_norm': 1.10422194, 'iteration': '1/12', 'elapsed_time': '0s', ...}
# ms-swift 3.8-4.6, transformers path: ... 'epoch': 0.02, 'global_step/max_steps': '1/8', ...
_METRICS = "{'loss': "
# How long the training has taken, swift/megatron/callbacks/print.py and swift/trainers/patcher.py (format_time): 13s,
# 2m 30s, 1h 2m 3s, 1d 2h 3m 4s
_ELAPSED = re.compile(r"'elapsed_time': '(?:(\d{1,5})d )?(?:(\d{1,2})h )?(?:(\d{1,2})m )?(\d{1,2})s'")
_METRICS_STEP = re.compile(r"'(?:iteration|global_step/max_steps)': '(\d{1,9})/(\d{1,9})'")
# The same callback after an evaluation (4.6.0, two gloo ranks, 2026-11-22); the transformers path's has an
# 'epoch' and is trainer_log's:
#   {'eval_loss': 0.68899089, 'eval_logps/chosen': -62.65713501, ..., 'iteration': '2/8', 'elapsed_time': '2s', ...}
_EVALUATED = "{'eval_"
_EVALUATED_STEP = "'iteration': '"

# ms-swift 3.7-3.12 and Megatron-LM core_r0.12-0.15, stdout of the last rank:
#    [2026-11-21 00:17:14] iteration        1/       8 | consumed samples:            8 | elapsed time per ...
_MEGATRON_STEP = re.compile(r"\biteration\s+(\d{1,9})/\s*(\d{1,9})\s+\|")
# Megatron formats losses with {:.6E}, which writes NAN and INF, and the gradient's norm with {:.3f}: nan and
# inf.
_MEGATRON_METRIC = re.compile(
    r"\|\s{0,9}([A-Za-z][\w /()]{0,60}):\s{0,20}([-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|[nN][aA][nN]|[iI][nN][fF]))"
    r"\s{0,9}(?=\|)"
)

# Megatron-LM core_r0.13-0.15, megatron/training/checkpointing.py, stdout of rank 0:
#   saving checkpoint at iteration       4 to DIR in torch_dist format
#     scheduled an async checkpoint save at iteration       4 to DIR      (--async-save; source)
_SAVE_STARTED = re.compile(
    r"(?:saving checkpoint|(scheduled) an async checkpoint save) at iteration\s{1,20}\d{1,9} to (\S+)"
)
#     successfully saved checkpoint from iteration       4 to DIR [ t 1/1, p 1/1 ]
# ms-swift 4.0-4.6, swift/megatron/utils/megatron_lm_utils.py, stderr:
#   [INFO:swift] Successfully saved Megatron model weights in `OUT/checkpoint-4`.
# ms-swift 3.10-4.6: [INFO:swift] Successfully saved `safetensors` model weights in `OUT/checkpoint-4`.
# ms-swift 3.8-4.6, swift/trainers/mixin.py, printed AFTER the checkpoint was written:
#   [INFO:swift] Saving model checkpoint to OUT/checkpoint-4
_SAVE_FINISHED = re.compile(
    r"successfully saved checkpoint from iteration\s+\d+ to (\S+)"
    r"|Successfully saved (?:Megatron|`safetensors`) model weights in `([^`]*)`"
    r"|\[INFO:swift\] Saving model checkpoint to (\S+)"
)

# ms-swift 4.0-4.6, swift/megatron/utils/megatron_lm_utils.py, stderr of rank 0:
#   [INFO:swift] TP: 2, PP: 2, VPP: None, CP: 1, EP: 2, ETP: 1
_LAYOUT = re.compile(r"\[INFO:swift\] TP: (\d{1,6}), PP: (\d{1,6}), VPP: ")
# Megatron-LM core_r0.8-0.15, megatron/training/initialize.py, stdout of rank 0; here below ms-swift 3.8.3 and
# 3.12.6:
#   > initialized pipeline model parallel with size 1
_STAGES = re.compile(r"^> initialized pipeline model parallel with size (\d{1,6})\s*$")

# The arguments as the program printed them, a config file's too.
# ms-swift 3.7-4.6, one line of 15 kB:   [INFO:swift] args: MegatronRLHFArguments(..., async_save=True, ...)
_ARGUMENTS, _ASYNC = "[INFO:swift] args: Megatron", " async_save=True,"
# Megatron-LM core_r0.8-0.15 (3.12.6 prints None where it is not set):
#     async_save ...................................... True
_ASYNC_LISTED = re.compile(r"^  async_save \.{2,80} True\s*$")


# tqdm 4.66, stderr, redrawn by carriage returns:
#   Train:   8%|8         | 1/12 [00:00<00:07,  1.55it/s]
#   Map (num_proc=2): 100%|##########| 512/512 [00:00<00:00, 1505.51 examples/s]
_BAR = re.compile(r"([^|%\r\n]{0,60}?):?\s{1,9}\d{1,3}%\|[^|]*\|\s*(\d{1,15})/(\d{1,15})\s")
# ... the time since it was first drawn: [00:05<..., [1:02:03<...
_BAR_CLOCK = re.compile(r"\s\[(?:(\d{1,5}):)?(\d{1,2}):(\d{2})<")

_OTHER_BARS = {
    # ms-swift 3.12-4.6, swift/megatron (desc='Evaluate: '; 3.8 prints lines only), drawn below the training's
    # bar: it ends in `ESC[A` and a line feed
    #   Evaluate:  33%|###3      | 1/3 [00:00<00:00,  2.54it/s]
    "Evaluate": "eval",
    # ms-swift 3.8-4.6, transformers path, swift/trainers/{callback,patcher}.py:
    #   Val:  33%|###3      | 2/6 [00:00<00:00, 10.76it/s]
    "Val": "eval",
    # ms-swift 3.10-4.6, the safetensors export: Saving:   0%|          | 0/4 [00:00<?, ?it/s]
    "Saving": "ckpt_save",
    # transformers 4.57, modeling_utils.py: Loading checkpoint shards:  50%|#####     | 2/4 [00:10<00:10,  5.2s/it]
    "Loading checkpoint shards": "model_load",
}


# One of these, or of phases.yaml, is in each line that has a fact here: what a large log is searched for.
WORDS: tuple[str, ...] = (
    "The training of Epoch", "{'loss'", "{'eval_", "%|", "TP: ", "initialized pipeline", "async_save", "iteration ",
    "aving checkpoint", "aved checkpoint", "async checkpoint save", "Successfully saved", "Saving model checkpoint",
)  # fmt: skip


def read_line(text: str, rank: int | None) -> Iterator[facts.Observation]:
    """Facts in one line. Costs a few substring searches for a line that says nothing."""
    if "The training of Epoch" in text and (match := _EPOCH.search(text)):
        yield facts.EpochStarted(rank, int(match[1]), text.strip())
        return
    if "{'loss'" in text:
        yield from _metrics(text, rank)
        return
    if _EVALUATED in text and _EVALUATED_STEP in text:
        yield from _evaluated(text, rank)
        return
    if "%|" in text[:100]:  # a bar that another line was printed behind, or one drawn below another
        yield from read_bar(text, rank)
    fact = _megatron_step(text, rank) or _save(text, rank) or _layout(text, rank)
    if fact is not None:
        yield fact
    elif "async_save" in text:
        if (text.startswith(_ARGUMENTS) and _ASYNC in text) or _ASYNC_LISTED.match(text):
            yield facts.SavesBehind(rank, text.strip()[:300])
    elif (phase := phase_of(text, "swift")) is not None:
        yield facts.PhaseMarked(rank, phase, text.strip())


def _megatron_step(text: str, rank: int | None) -> facts.Iteration | None:
    if " iteration " not in text and not text.startswith("iteration"):
        return None
    match = _MEGATRON_STEP.search(text)
    if match is None:
        return None
    found = tuple((name, float(value)) for name, value in _MEGATRON_METRIC.findall(text))
    return facts.Iteration(rank, int(match[1]), int(match[2]), text.strip(), found)


def _save(text: str, rank: int | None) -> facts.SaveStarted | facts.SaveFinished | None:
    if "sav" not in text and "Sav" not in text:
        return None
    if match := _SAVE_FINISHED.search(text):
        return facts.SaveFinished(rank, text.strip(), next((path for path in match.groups() if path), ""))
    if match := _SAVE_STARTED.search(text):
        return facts.SaveStarted(rank, text.strip(), match[2], asynchronous=match[1] is not None)
    return None


def _layout(text: str, rank: int | None) -> facts.LayoutReported | None:
    if "TP: " not in text and "initialized pipeline" not in text:
        return None
    match = _LAYOUT.search(text) or _STAGES.match(text)
    return facts.LayoutReported(rank, int(match[match.lastindex or 1]), text.strip()[:300]) if match else None


def _evaluated(text: str, rank: int | None) -> Iterator[facts.Observation]:
    begin, end = text.find(_EVALUATED), text.rfind("}") + 1
    if end > begin:
        yield facts.MetricsLogged(rank, numbers_of(text[begin:end]), text[begin:end])


def _metrics(text: str, rank: int | None) -> Iterator[facts.Observation]:
    begin, end = text.find(_METRICS), text.rfind("}") + 1
    step = _METRICS_STEP.search(text)
    if begin < 0 or end <= begin or step is None:
        return
    numbers = text[begin:end]
    clock = _clock(_ELAPSED.search(numbers))
    yield facts.Iteration(rank, int(step[1]), int(step[2]), numbers, numbers_of(numbers), clock)


def _clock(found: re.Match[str] | None) -> float | None:
    """Seconds of groups that end in hours, minutes and seconds, days before them."""
    if found is None:
        return None
    units = (86400, 3600, 60, 1)[-len(found.groups()) :]
    return float(sum(int(number or 0) * unit for number, unit in zip(found.groups(), units, strict=True)))


def read_bar(text: str, rank: int | None) -> Iterator[facts.Observation]:
    """A progress bar's last drawing: the training bar counts as steps, any other as progress of data
    preparation."""
    # a terminal's width; blanks before it would cost their square
    match = _BAR.match(text.strip()[:1000] + " ")
    if match is None:
        return
    name, done, total = match[1].strip(), int(match[2]), int(match[3])
    if name == "Train":
        # The transformers path has no line before its first batch but the empty bar, drawn when training
        # begins.
        yield (
            facts.Iteration(
                rank, done, total, text.strip()[:300], clock=_clock(_BAR_CLOCK.search(text, match.end() - 2))
            )
            if done
            else facts.PhaseMarked(rank, "first_step", text.strip()[:300])
        )
    elif name.startswith(("Map", "Filter", "Tokenizing", "Packing", "Generating")):
        yield facts.PhaseMarked(rank, "data_prep", text.strip())
    elif (
        name in _OTHER_BARS and done < total
    ):  # a full bar may be drawn again when what it showed is long over
        yield facts.PhaseMarked(rank, _OTHER_BARS[name], text.strip()[:300])
