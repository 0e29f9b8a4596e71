"""The flags that a trainer's argument classes take, read from their source text: transformers' HfArgumentParser makes
one of each field of a dataclass. Nothing is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# The argument class of each command: the first of these that the package has, by versions of ms-swift from 4.6 back to 2.0
# (swift/pipelines, swift/megatron/pipelines, swift/llm).
CLASSES: Mapping[str, Mapping[str, str]] = {
    "swift": {
        "sft": "SftArguments TrainArguments",
        "pt": "PretrainArguments PtArguments TrainArguments",
        "rlhf": "RLHFArguments",
        "dpo": "DPOArguments RLHFArguments",
        "orpo": "ORPOArguments RLHFArguments",
        "simpo": "SimPOArguments RLHFArguments",
        "infer": "InferArguments",
        "deploy": "DeployArguments",
        "rollout": "RolloutArguments DeployArguments",
        "eval": "EvalArguments",
        "export": "ExportArguments",
        "merge-lora": "ExportArguments",
        "sample": "SamplingArguments",
    },
    "megatron": {
        "sft": "MegatronSftArguments MegatronTrainArguments",
        "pt": "MegatronPretrainArguments MegatronTrainArguments",
        "rlhf": "MegatronRLHFArguments",
        "export": "MegatronExportArguments",
    },
}
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_MOST_BYTES = 1 << 20


class Unresolved(Exception):
    """A class, or one that it inherits from, is not in the sources; the message names it."""


@dataclass(slots=True)
class ArgumentClasses:
    """The classes of some packages, by `folders`: the top module of each package, and where it lies. Only files
    are looked at whose path within a package has "arg" in it, as those of argument classes have.

    Raises Unresolved and, for files that cannot be read, OSError.
    """

    folders: Mapping[str, Path]
    _index: dict[str, dict[str, list[Path]]] = field(default_factory=dict, init=False)
    _trees: dict[Path, _Module] = field(default_factory=dict, init=False)

    def fields(self, package: str, name: str) -> frozenset[str]:
        """The names of the fields of a class, with those that it inherits."""
        return self._fields(self._place(package, name, ""), name)

    def of_command(self, program: str, verb: str) -> frozenset[str]:
        """The flags of `swift VERB` or `megatron VERB`, without their dashes."""
        for name in CLASSES[program].get(verb, "").split():
            if self._index_of("swift").get(name):
                return self.fields("swift", name)
        raise Unresolved(f"the arguments of {program} {verb}")

    def _fields(self, path: Path, name: str) -> frozenset[str]:
        module = self._module(path)
        there = module.classes[name]
        found = frozenset(there.fields)
        for base in there.bases:
            if base in module.classes:
                found |= self._fields(path, base)
            elif base in module.imported:
                package, inside, original = module.imported[base]
                if package in self.folders:
                    found |= self._fields(self._place(package, original, inside), original)
                else:
                    raise Unresolved(f"{original} of {package}")
            elif base not in ("object", "ABC", "Generic"):
                raise Unresolved(base)
        return found

    def _place(self, package: str, name: str, inside: str) -> Path:
        """The file that has a class; `inside` is the folder or module that it was imported from."""
        places = self._index_of(package).get(name, [])
        if not places:
            raise Unresolved(f"{name} of {package}")
        root = self.folders[package]
        return max(places, key=lambda path: str(path.relative_to(root)).startswith(inside))

    def _index_of(self, package: str) -> dict[str, list[Path]]:
        if package not in self._index:
            index = self._index[package] = {}
            for path in _argument_files(self.folders[package]):
                for name in _CLASS.findall(_text(path)):
                    index.setdefault(name, []).append(path)
        return self._index[package]

    def _module(self, path: Path) -> _Module:
        if path not in self._trees:
            package, root = next(
                (name, one) for name, one in self.folders.items() if path.is_relative_to(one)
            )
            self._trees[path] = _module(_text(path), package, path.relative_to(root))
        return self._trees[path]


@dataclass(frozen=True, slots=True)
class _Class:
    fields: tuple[str, ...]
    bases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Module:
    """`imported`: the name here -> package, the folder or module inside it, the name there."""

    classes: Mapping[str, _Class]
    imported: Mapping[str, tuple[str, str, str]]


def _module(text: str, package: str, place: Path) -> _Module:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unresolved(f"{place} of {package}") from error
    classes, imported = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            top, inside = _imported_from(node, package, place)
            for one in node.names:
                imported[one.asname or one.name] = (top, inside, one.name)
        elif isinstance(node, ast.ClassDef):
            names = tuple(_fields_of(node)) if _is_dataclass(node) else ()
            classes[node.name] = _Class(names, tuple(filter(None, map(_name, node.bases))))
    return _Module(classes, imported)


def _imported_from(node: ast.ImportFrom, package: str, place: Path) -> tuple[str, str]:
    dotted = (node.module or "").split(".")
    if node.level:
        parts = place.parts[: -node.level]
        return package, "/".join([*parts, *filter(None, dotted)])
    return dotted[0], "/".join(dotted[1:])


def _fields_of(node: ast.ClassDef) -> Iterator[str]:
    """Those that `__init__` takes, of which HfArgumentParser makes options."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            made = one.value.keywords if isinstance(one.value, ast.Call) else ()
            without = any(word.arg == "init" and _is_false(word.value) for word in made)
            if not without and "ClassVar" not in ast.unparse(one.annotation):
                yield one.target.id


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_dataclass(node: ast.ClassDef) -> bool:
    called = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return any(_name(one) == "dataclass" for one in called)


def _name(node: ast.expr) -> str:
    """`dataclass` of both `dataclass` and `dataclasses.dataclass`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _argument_files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*.py") if "arg" in str(path.relative_to(folder)))
    return sorted(found)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")
