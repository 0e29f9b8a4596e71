"""Where a command saves its checkpoints and what it begins from, as its arguments name it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

# Megatron-LM --save; ms-swift and HF Trainer --output_dir (4.x and the transformers path) or --save (ms-swift
# 3.x, Megatron); torchtitan, nanotron and own scripts the others.
_SAVE_FLAGS = (
    "save", "output-dir", "save-dir", "save-path", "checkpoint-dir", "ckpt-dir", "default-local-dir",
)  # fmt: skip
# Megatron-LM --load, --pretrained-checkpoint; ms-swift 4.x --mcore_model, --mcore_adapter and their ref_; 3.x
# --load, --adapter_load, --ref_load; HF Trainer and ms-swift's transformers path --resume_from_checkpoint.
_LOAD_FLAGS = (
    "load", "pretrained-checkpoint", "mcore-model", "mcore-adapter", "mcore-ref-model", "mcore-ref-adapter", "ref-load",
    "adapter-load", "ref-adapter-load", "resume-from-checkpoint",
)  # fmt: skip
# These take the name of a model on a hub as well: a path only where it is written as one.
_MODEL_FLAGS = ("model", "ref-model", "adapters", "model-name-or-path", "adapter-name-or-path")
_NO_PATHS = frozenset({"", "true", "false", "none", "null", "yes", "no", "auto", "latest"})
_LONGEST = 4096  # PATH_MAX
WEIGHTS_ONLY = "it holds weights only: the optimizer and the step begin anew"


# Not the last number of any name: ms-swift's own folder above is v0-20261121-194515.
_ITERATION = re.compile(r"(?:^|/)(?:checkpoint-|iter_|global_step_?|step[-_]?)(\d{1,9})(?:-merged)?/*$")


def iteration_of(path: str) -> int | None:
    """The step that a checkpoint's path names.

    >>> iteration_of("/out/v0-20261121-194515/checkpoint-500"), iteration_of("/save/iter_0000500"), iteration_of("/save")
    (500, 500, None)
    """
    found = _ITERATION.search(path[-4096:])
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class NamedPath:
    """`role` is save or load; `path` as it was written."""

    flag: str
    path: str
    role: str


def named_paths(argv: Sequence[str]) -> list[NamedPath]:
    """Every folder that the command names for its checkpoints, the last of two equal flags only.

    >>> [(item.flag, item.path) for item in named_paths(["--output_dir", "out", "--model", "Qwen/Qwen3-8B", "--load=/a"])]
    [('--output_dir', 'out'), ('--load', '/a')]
    """
    found: dict[str, NamedPath] = {}
    for flag, value in _flags(argv):
        name = flag.lstrip("-").replace("_", "-").rpartition(".")[2]
        role = "save" if name in _SAVE_FLAGS else "load" if name in _LOAD_FLAGS + _MODEL_FLAGS else ""
        no_path = value.lower() in _NO_PATHS or value.isdigit() or len(value) > _LONGEST or "://" in value
        of_hub = name in _MODEL_FLAGS and not value.startswith(("/", "./", "../", "~/"))
        if role and not no_path and not of_hub:
            found[name] = NamedPath(flag, value, role)
    return list(found.values())


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        # Hydra: trainer.default_local_dir=/out
        if equals and (word.startswith("--") or ("." in flag and "/" not in flag)):
            yield flag, value
        elif word.startswith("--") and place + 1 < len(argv) and not argv[place + 1].startswith("--"):
            yield word, argv[place + 1]


def save_root(path: str) -> str:
    """The folder of checkpoints that a log line's path is, or is in: Megatron names the root, ms-swift the
    checkpoint.

    >>> save_root("/out/v0/checkpoint-4/"), save_root("/save")
    ('/out/v0', '/save')
    """
    return str(PurePosixPath(path).parent if iteration_of(path) is not None else PurePosixPath(path))


def resume_advice(argv: Sequence[str], path: str, kind: str) -> str:
    """The flags with which this command would go on from a checkpoint, for people.

    >>> resume_advice(["pretrain_gpt.py"], "/save/iter_0000500", "torch_dist")
    '--load /save --ckpt-step 500'
    """
    words, note = resume_words(argv, path, kind)
    return " ".join(words) + (f" ({note})" if note else "")


def resume_words(argv: Sequence[str], path: str, kind: str) -> tuple[tuple[str, ...], str]:
    """The same as words of a command, and what a person has to know of them.

    ms-swift 4.6.0, megatron_args.py: mcore_model takes checkpoint-N, and finetune is true unless set.
    ms-swift 3.x and Megatron-LM: load takes the folder above iter_NNNNNNN, core_r0.13 the step with
    ckpt-step. transformers 4.57: resume_from_checkpoint.
    """
    # ms-swift's own command
    megatron = any(PurePosixPath(word).name == "megatron" or "/_megatron/" in word for word in argv)
    if kind in ("torch_dist", "torch_dcp", "megatron_legacy"):
        above, step = PurePosixPath(path).parent, iteration_of(path)
        if PurePosixPath(path).name.startswith("checkpoint-"):
            note = "ms-swift's default, true, takes the weights only"
            return ("--mcore_model", path, "--finetune", "false"), note
        load = ("--load", str(above))
        if megatron:
            return (*load, "--finetune", "false"), ""
        return (load if step is None else (*load, "--ckpt-step", str(step))), ""
    if megatron:
        return ("--model", path), WEIGHTS_ONLY
    return ("--resume_from_checkpoint", path), ""
