"""Writes diag/knowledge/swift_flags.yaml from wheels, without importing what is in them:

    pip download --no-deps -d WHEELS ms-swift==X            for the last release of each minor version
    pip download --no-deps -d WHEELS transformers==Y        for some of each of those that ms-swift allows
    python -m tests.labs.swift_flags WHEELS

A flag that only transformers' own TrainingArguments have is in the table of `transformers`, of all versions together.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from diag.preflight.software.argument_classes import CLASSES, ArgumentClasses

TABLE = Path(__file__).parents[2] / "diag" / "knowledge" / "swift_flags.yaml"
_HEAD = """\
# Written by `python -m tests.labs.swift_flags WHEELS`, not by hand. The flags of ms-swift's commands, from the fields of its argument
# classes in the last release of each minor version. A key of `flags` says which commands take those below it, and in which versions;
# `transformers` are those that its trainers' commands (swift sft, pt and rlhf since 3.0) take from transformers' TrainingArguments.
"""

Version = tuple[int, int]
_Rows = Mapping[str, Mapping[Version, frozenset[str]]]  # command -> version -> flags


def wheels(folder: Path, package: str) -> Iterator[tuple[Version, Path]]:
    for path in sorted(folder.glob(f"{package}-*.whl")):
        numbers = re.match(rf"{package}-(\d+)\.(\d+)", path.name)
        if numbers:
            yield (int(numbers[1]), int(numbers[2])), path


def unpacked(path: Path, package: str, into: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        names = [
            name for name in archive.namelist() if name.startswith(f"{package}/") and name.endswith(".py")
        ]
        archive.extractall(into, [name for name in names if "arg" in name or name.startswith("swift/cli/")])
    return into / package


def trainer_flags(folder: Path) -> frozenset[str]:
    """Of transformers' own, in any of the versions that are there."""
    found: frozenset[str] = frozenset()
    for version, path in wheels(folder, "transformers"):
        with tempfile.TemporaryDirectory() as place:
            root = unpacked(path, "transformers", Path(place) / str(version))
            classes = ArgumentClasses({"transformers": root})
            found |= classes.fields("transformers", "Seq2SeqTrainingArguments")
    return found


def commands(folder: Path) -> dict[str, dict[Version, frozenset[str]]]:
    """What each command takes, without what only transformers' classes have."""
    found: dict[str, dict[Version, frozenset[str]]] = defaultdict(dict)
    with tempfile.TemporaryDirectory() as place:
        bare = Path(place) / "bare"
        bare.mkdir()
        for name in ("training_args", "training_args_seq2seq"):
            classes_of = "class TrainingArguments: pass\nclass Seq2SeqTrainingArguments: pass\n"
            (bare / f"{name}.py").write_text(classes_of)
        for version, path in wheels(folder, "ms_swift"):
            root = unpacked(path, "swift", Path(place) / str(version))
            classes = ArgumentClasses({"swift": root, "transformers": bare})
            for program, verb in sorted(_routes(root)):
                if CLASSES[program].get(verb):
                    found[f"{program} {verb}"][version] = classes.of_command(program, verb)
    return found


def _routes(root: Path) -> Iterator[tuple[str, str]]:
    """The commands that swift/cli/main.py names."""
    for program, file in (("swift", "main.py"), ("megatron", "_megatron/main.py")):
        path = root / "cli" / file
        if path.is_file():
            for verb in re.findall(r"^    '([\w-]+)': 'swift\.cli\.", path.read_text(), re.MULTILINE):
                yield program, verb


def spans(of: frozenset[Version], all_of: list[Version]) -> str:
    """
    >>> spans(frozenset({(3, 0), (3, 1), (4, 0)}), [(3, 0), (3, 1), (3, 2), (4, 0)])
    '3.0-3.1 4.0'
    """
    parts: list[list[Version]] = []
    for at, version in enumerate(all_of):
        if version in of:
            if parts and parts[-1][-1] == all_of[at - 1]:
                parts[-1].append(version)
            else:
                parts.append([version])
    return " ".join("-".join(dict.fromkeys(f"{a}.{b}" for a, b in (part[0], part[-1]))) for part in parts)


def table_text(rows: _Rows, trainer: frozenset[str]) -> str:
    all_of = sorted({version for row in rows.values() for version in row})
    where: dict[str, dict[str, frozenset[Version]]] = defaultdict(dict)
    for command, row in rows.items():
        for name in sorted({name for names in row.values() for name in names}):
            where[name][command] = frozenset(version for version, names in row.items() if name in names)
    groups: dict[str, list[str]] = defaultdict(list)
    for name, of in where.items():
        by_span: dict[str, list[str]] = defaultdict(list)
        for command, versions in of.items():
            by_span[spans(versions, all_of)].append(command)
        groups["; ".join(f"{', '.join(who)} {span}" for span, who in by_span.items())].append(name)
    lines = [_HEAD, f"versions: {' '.join(f'{a}.{b}' for a, b in all_of)}\n", "commands:\n"]
    lines += [f"  {command}: {spans(frozenset(row), all_of)}\n" for command, row in rows.items()]
    lines += ["flags:\n"]
    for key, names in sorted(groups.items()):
        lines += [f"  {key}: >-\n", _wrapped(names)]
    lines += ["transformers: >-\n", _wrapped(sorted(trainer))]
    return "".join(lines)


def _wrapped(names: list[str]) -> str:
    return textwrap.fill(" ".join(sorted(names)), 130, initial_indent="    ", subsequent_indent="    ") + "\n"


if __name__ == "__main__":
    wheels_here = Path(sys.argv[1])
    TABLE.write_text(table_text(commands(wheels_here), trainer_flags(wheels_here)))
    print(f"{TABLE.name}: {TABLE.stat().st_size:,} bytes")
