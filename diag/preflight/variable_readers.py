"""Who reads a variable that no table knows: the text of the packages that CMD will use, and of its own script, tells.
Nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Packages of a training, and of the large ones the parts that read an environment; models do not.
_PARTS = (
    "swift", "mcore_bridge", "megatron", "accelerate", "deepspeed", "trl", "peft", "transformers", "datasets",
    "huggingface_hub", "modelscope/hub", "modelscope/utils", "modelscope_hub", "torch/distributed", "torch/utils",
    "torch/cuda", "torch/backends", "torch/_inductor", "transformer_engine", "flash_attn", "wandb/env.py", "vllm/envs.py",
)  # fmt: skip
_LEFT_OUT = frozenset(["models", "__pycache__", "tests", "test", "testing", "test_utils"])
_MOST_FILES = 20_000
_MOST_OF_SCRIPT = 300
_MOST_BYTES = 1 << 20
_STRING = re.compile(rb"""['"]([A-Za-z][A-Za-z0-9_]{2,60})['"]""")
# os.environ, os.getenv, ms-swift's get_env_args, vLLM's envs
_READS = re.compile(rb"env", re.IGNORECASE)
# The fields of dataclasses that argparse makes flags of.
_FIELD = re.compile(rb"^    ([a-z][a-z0-9_]{2,60})\s*:", re.MULTILINE)
_ARGUMENTS = re.compile(r"arguments?(?:/|\.py$)|training_args|_args\.py$|_config\.py$")


@dataclass(slots=True)
class Readers:
    """By name: `places` (FILE:LINE) that read it, `mentions` of its name elsewhere, `flags` of its name. `looked` are the
    packages whose text was read, and "" is why none was."""

    looked: tuple[str, ...] = ()
    places: dict[str, str] = field(default_factory=dict)
    mentions: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)


def find_readers(names: Iterable[str], sites: Sequence[Path], scripts: Sequence[Path]) -> Readers:
    """`sites` hold packages; `scripts` are files of CMD's own, whose folders are looked at too. A name counts in any case:
    ms-swift's get_env_args('max_pixels') reads MAX_PIXELS."""
    wanted = {name.upper(): name for name in names}
    found = Readers()
    looked: list[str] = []
    for part, path, place in _files(sites, scripts):
        if part not in looked:
            looked.append(part)
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES)
        except OSError:
            continue
        _look(data, place, wanted, found)
    found.looked = tuple(looked)
    return found


def _files(sites: Sequence[Path], scripts: Sequence[Path]) -> Iterator[tuple[str, Path, str]]:
    count = 0
    for part in _PARTS:
        for site in sites:
            for path in _python_files(site / part):
                count += 1
                if count <= _MOST_FILES:
                    yield part.partition("/")[0], path, str(path.relative_to(site))
    for folder in dict.fromkeys(script.parent for script in scripts):
        for path in [*scripts, *sorted(folder.glob("*.py"))][:_MOST_OF_SCRIPT]:
            yield "CMD's own files", path, str(path)


def _python_files(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _look(data: bytes, place: str, wanted: Mapping[str, str], found: Readers) -> None:
    if _READS.search(data):
        for match in _STRING.finditer(data):
            name = wanted.get(match[1].decode().upper())
            if name is None or name in found.places:
                continue
            # On its line or the one above: a call may be written over several.
            line_begin = data.rfind(b"\n", 0, match.start())
            begin = data.rfind(b"\n", 0, max(line_begin, 0))
            before = data[max(begin, match.start() - 160, 0) : match.start()]
            number = data.count(b"\n", 0, match.start()) + 1
            where = f"{place}:{number}"
            kept = found.places if _READS.search(before) else found.mentions
            kept.setdefault(name, where)
    if place.endswith((".sh", ".bash")):
        for name in wanted.values():
            if re.search(rb"\$\{?" + name.encode() + rb"\b", data):
                found.places.setdefault(name, place)
    if _ARGUMENTS.search(place):
        for match in _FIELD.finditer(data):
            name = wanted.get(match[1].decode().upper()) or _ending(match[1].decode().upper(), wanted)
            if name is not None:
                found.flags.setdefault(name, f"--{match[1].decode()}")


def _ending(field_name: str, wanted: Mapping[str, str]) -> str | None:
    """dataloader_num_workers for NUM_WORKERS."""
    return next((name for upper, name in wanted.items() if field_name.endswith(f"_{upper}")), None)
