"""What the flags of a training command say, as Megatron-LM (`--async-save`) and ms-swift (`--async_save true`) write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath


def flag_values(argv: Sequence[str], *names: str) -> Iterator[str]:
    """What a command gives these flags, one after another; "true" for one that stands alone. A dash and an
    underscore are the same here.

    >>> list(flag_values(["--save_steps=5", "--save-steps", "7", "--bf16"], "save_steps", "bf16"))
    ['5', '7', 'true']
    """
    for word, following in pairwise([*argv, "--"]):
        key, equals, value = word.partition("=")
        if key.startswith("--") and key[2:].replace("-", "_") in names:
            yield value if equals else "true" if following.startswith("--") else following


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


def _size(command: str, kind: str, short: str) -> int | None:
    # megatron-core 0.12-0.18, ms-swift 3.7-4.6 (underscores), Megatron-LM (hyphens), the bundled job (--pp)
    found = re.search(rf"--(?:{kind}[-_]parallel[-_]size|{short})[= ](\d{{1,5}})\b", command)
    return int(found[1]) if found else None


def ranks_of_one_batch(command: str) -> int:
    """How many ranks compute on one batch together, and exchange parts of it in every layer; 1 where the command
    does not say.

    >>> ranks_of_one_batch("megatron sft --tensor_model_parallel_size 2 --cp 2"), ranks_of_one_batch("train.py")
    (4, 1)
    """
    # Of one batch each rank has a part of every tensor (TP), or of the sequence (CP).
    sizes = (_size(command, "tensor[-_]model", "tp"), _size(command, "context", "cp"))
    return max(1, math.prod(size for size in sizes if size is not None))


def pipeline_parallel_size(command: str) -> int | None:
    """None when the command does not say: then there may be one stage, or a layout that is set elsewhere.

    >>> pipeline_parallel_size("megatron rlhf --pipeline_model_parallel_size 4"), pipeline_parallel_size("train.py")
    (4, None)
    """
    return _size(command, "pipeline[-_]model", "pp")


def peer_stage(rank: int, world_size: int, stages: int, step: int) -> int | None:
    """The rank `step` stages further that holds the same part: Megatron lets the pipeline vary slowest. None:
    no such layout.

    >>> peer_stage(1, 4, 2, 1), peer_stage(3, 4, 2, 1), peer_stage(0, 6, 4, 1)
    (3, 1, None)
    """
    if stages < 2 or world_size % stages:
        return None
    return (rank + step * (world_size // stages)) % world_size
