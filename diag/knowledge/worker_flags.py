"""By which flag a training command sets its DataLoader workers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

_FLAGS = re.compile(r"--((?:dataloader[_-])?num[_-]workers)(?:=|$)")
_VERBS = ("sft", "rlhf", "pt")


def workers_flag(words: Sequence[str], versions: Mapping[str, str]) -> str:
    """Empty where the program has none, or is not known. `words`: the command, and that of a rank; `versions`: of
    packages, as the log shows them.

    As it is written in the command; else ms-swift 4.x and `swift` of any version (megatron_args.py of 4.6.0,
    transformers' TrainingArguments), `megatron` of ms-swift 3.7-3.12 (Megatron-LM's name), Megatron-LM.

    >>> workers_flag(["torchrun", "train.py", "--num-workers=8"], {}), workers_flag(["python", "train.py"], {})
    ('--num-workers', '')
    >>> workers_flag(["megatron", "sft"], {"ms-swift": "3.12.6"}), workers_flag(["megatron", "sft"], {"ms-swift": "4.6.0"})
    ('--num_workers', '--dataloader_num_workers')
    """
    written = [match[1] for word in words if (match := _FLAGS.match(word))]
    if written:
        return f"--{written[-1]}"
    program = _program(words)
    old = versions.get("ms-swift", "").startswith("3.")
    if program == "swift" or ("ms-swift" in versions and not old):
        return "--dataloader_num_workers"
    if program == "megatron" and old:
        return "--num_workers"
    return "--num-workers" if any(word.startswith("--tensor-model-parallel-size") for word in words) else ""


def _program(words: Sequence[str]) -> str:
    """`megatron` or `swift` of ms-swift, by their commands or by the files that these start in each rank."""
    for word, verb in pairwise([*words, ""]):
        name = PurePosixPath(word).name
        if "swift/cli/_megatron/" in word or (name == "megatron" and verb in _VERBS):
            return "megatron"
        if "swift/cli/" in word or (name == "swift" and verb in _VERBS):
            return "swift"
    return ""
