"""The flags that a version of ms-swift takes, read from its sources: the fields of an argument class and of
its bases.

`python -m tests.deploy.swift_flags FOLDER CLASS` prints them, FOLDER being the unpacked wheel (`swift/` in
it); this is how the recorded lists beside this file were made.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["flags"]


def flags(folder: Path, name: str) -> frozenset[str]:
    """Field names of class `name` of the package below `folder`, inherited ones too."""
    return frozenset(_fields(folder, name, set()))


def _fields(folder: Path, name: str, seen: set[str]) -> Iterator[str]:
    if name in seen:
        return
    seen.add(name)
    found = _classes(folder).get(name)
    if found is None:
        yield from _of_transformers(name)
        return
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
    for base in found.bases:
        yield from _fields(
            folder, base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", ""), seen
        )


@cache
def _classes(folder: Path) -> dict[str, ast.ClassDef]:
    """Dataclasses by name. The argument classes come last: trainers have classes of the same names."""
    found: dict[str, ast.ClassDef] = {}
    for path in sorted(folder.glob("swift/**/*.py"), key=lambda path: "argument" in str(path)):
        if "arguments" not in path.name and "argument" not in str(path) and "_args" not in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name] = node
    return found


def _of_transformers(name: str) -> Iterator[str]:
    """What ms-swift inherits from another package; HfTrainingArguments is what it calls Transformers' own."""
    names = {
        "HfTrainingArguments": "TrainingArguments",
        "HfSeq2SeqTrainingArguments": "Seq2SeqTrainingArguments",
    }
    import transformers

    kind = getattr(transformers, names.get(name, name), None)
    if kind is not None and dataclasses.is_dataclass(kind):
        yield from (field.name for field in dataclasses.fields(kind))


if __name__ == "__main__":
    print("\n".join(sorted(flags(Path(sys.argv[1]), sys.argv[2]))))
