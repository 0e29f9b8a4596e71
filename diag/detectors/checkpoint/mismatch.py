"""A checkpoint was read, but does not fit the model or the layout that the job's arguments ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from diag.detectors.checkpoint.lines import QuotedLine, QuotedLines, Rule, failed_by, ranks_of
from diag.model import JOB, Confidence, Finding, NotChecked, Severity
from diag.model.observations import LogLine
from diag.state.view import JobView
from diag.text.units import format_ranks

_RULES = (
    # Megatron-LM core_r0.13, megatron/training/checkpointing.py:
    #   AssertionError: num_layers value from checkpoint (48) is not equal to the input argument value (24).
    Rule(
        "arguments",
        re.compile(
            r"(\w{1,60} value from checkpoint \([^)\n]{1,100}\) is not equal to the input argument value \([^)\n]{1,100}\))"
        ),
    ),
    # The same file: RuntimeError: (TP, PP) mismatch after resume ((2, 1) vs (1, 1) from checkpoint): not
    # supported for ...
    Rule("layout", re.compile(r"(\(TP, PP\) mismatch after resume [^:\n]{1,100}): not supported")),
    # DeepSpeed, ZeRORuntimeException: The checkpoint being loaded used a DP world size of 4 but the current
    # world size is 1. ...
    Rule(
        "layout",
        re.compile(
            r"(The checkpoint being loaded used a DP world size of \d{1,7} but the current world size is \d{1,7})"
        ),
    ),
    # torch 2.13, nn/modules/module.py:  size mismatch for a.weight: copying a param with shape torch.Size([4, 2]) from ...
    Rule("shape", re.compile(r"(size mismatch for \S{1,300}: copying a param with shape [^\n]{1,160})")),
    # megatron-core 0.16.1, strategies/torch.py:
    #   CheckpointingException: Global shape mismatch for loaded (torch.Size([64])) and expected ((128,)) tensor for key a.weight
    Rule("shape", re.compile(r"(Global shape mismatch for loaded [^\n]{1,240})")),
    # torch 2.13, distributed/checkpoint/default_planner.py: ValueError: Size mismatch between saved
    # torch.Size([2]) and current: ...
    Rule("shape", re.compile(r"(Size mismatch between saved [^\n]{1,240})")),
    # megatron-core 0.16.1: KeyError: "decoder.layers.0.weight from model not in state dict: [...]"
    Rule("keys", re.compile(r"(\S{1,300} from model not in state dict)")),
    # torch 2.13: RuntimeError: Error(s) in loading state_dict for M: \n\tMissing key(s) in state_dict: "a",
    # "b".
    Rule("keys", re.compile(r"((?:Missing|Unexpected) key\(s\) in state_dict: [^\n]{1,160})")),
    Rule("keys", re.compile(r"(Missing key in checkpoint state_dict: \S{1,300})")),
    # megatron-core 0.16.1, validation.py: Unexpected keys (not found in the checkpoint) encountered in the
    # provided sharded state dict.
    Rule(
        "keys",
        re.compile(
            r"(Some keys found in the checkpoint are missing in the provided sharded state dict"
            r"|Unexpected keys \(not found in the checkpoint\) encountered in the provided sharded state dict)"
        ),
    ),
    # mcore_bridge 1.6.1, gpt_bridge.py: AssertionError: incompatible_keys.missing_keys: ['...']
    Rule("keys", re.compile(r"(incompatible_keys\.missing_keys: [^\n]{1,160})")),
    # Megatron-LM core_r0.8-0.13, megatron/training/checkpointing.py; then exit status 0 (core_r0.13: of the
    # optimizer's it raises):
    #   Unable to load rng state from checkpoint DIR. Specify --no-load-rng or --finetune to prevent attempting to load ...,
    #       exiting ...
    Rule("rng", re.compile(r"(Unable to load rng state from checkpoint[^,\n]{0,600})")),
    Rule("optimizer", re.compile(r"(Unable to load optimizer from checkpoint[^,\n]{0,600})")),
    #   A metadata file exists but unable to load iteration from checkpoint DIR, exiting
    Rule(
        "iteration",
        re.compile(r"(A metadata file exists but unable to load iteration from checkpoint [^,\n]{1,500})"),
    ),
)
_WORDS = (
    "value from checkpoint",
    "mismatch",
    "being loaded used a DP world size",
    "not in state dict",
    "state_dict",
    "sharded state dict",
    "incompatible_keys",
    "Unable to load",
    "unable to load iteration",
)
_EXITS_WITH_0 = ("rng", "optimizer", "iteration")

_ADVICE = {
    "arguments": "Give the arguments that the checkpoint was made with, or let Megatron-LM take them from it: "
    "--use-checkpoint-args. For another model load the weights only, from safetensors (ms-swift: --model DIR).",
    "layout": "Start with the layout of the checkpoint, load without the optimizer (ms-swift: --no_load_optim true "
    "--no_load_rng true; Megatron-LM: --no-load-optim --no-load-rng), or save in a form that can be laid out anew: "
    "--dist_ckpt_optim_fully_reshardable true (ms-swift 4.x), --ckpt-fully-parallel-save (Megatron-LM), DeepSpeed's universal "
    "checkpoint (ds_to_universal.py).",
    "shape": "The model of the checkpoint is another one, or its vocabulary was padded otherwise: compare --model, the "
    "model's config.json, --padded_vocab_size and --make-vocab-size-divisible-by with those of the job that saved it.",
    "keys": "The parts of the model differ: LoRA against full weights (--tuner_type, --mcore_adapter against --mcore_model), "
    "another architecture, or a checkpoint without its optimizer (--no_load_optim true, --no-load-optim).",
    "rng": "--no-load-rng (Megatron-LM) or --no_load_rng true (ms-swift): the checkpoint has no random state, or one of "
    "another layout.",
    "optimizer": "--no-load-optim (Megatron-LM) or --no_load_optim true (ms-swift): the checkpoint has no optimizer; with "
    "--finetune the count of steps begins anew as well.",
    "iteration": "The checkpoint does not say at which step it was made: --finetune loads its weights and begins at step 0.",
}


class CheckpointArgsMismatchDetector:
    """Meaning: the checkpoint does not fit the job: other shapes, other parts, another parallel layout, or no
    optimizer or random state.

    Evidence: the words of torch, Megatron, ms-swift and DeepSpeed while loading, before the job ended.
    Megatron-LM ends with exit status 0 in some of these cases, so the launcher calls the job finished.

    What to do: the advice follows the cause: arguments, layout, shape, keys, rng, optimizer, iteration.

    False alarms: none known; a mismatch that the program went on from is not reported.
    """

    name = "checkpoint-args-mismatch"
    listens = (LogLine,)

    def __init__(self) -> None:
        self._lines = QuotedLines(_RULES, _WORDS)

    def observe(self, at: float, fact: LogLine) -> None:
        self._lines.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        said = [item for item in self._lines.said if _is_fatal(job, item)]
        if not said:
            return
        first, ranks = said[0], ranks_of(said)
        who = format_ranks(ranks) if ranks else "the job"
        quietly = "; the job ended with status 0 all the same" if job.returncode == 0 else ""
        yield Finding(
            id="checkpoint-args-mismatch",
            subject=JOB,
            severity=Severity.CRITICAL,
            confidence=Confidence.HIGH,
            ranks=ranks,
            since=first.at,
            cause=first.cause,
            final=True,
            summary=f"{who} could not load the checkpoint: {first.match[1].strip()[:240]}{quietly}",
            advice=_ADVICE[first.cause],
            evidence=tuple(item.evidence() for item in said[:3]),
        )

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


def _is_fatal(job: JobView, item: QuotedLine) -> bool:
    if failed_by(job, item):
        return True
    return item.cause in _EXITS_WITH_0 and job.returncode == 0 and job.iteration is None
