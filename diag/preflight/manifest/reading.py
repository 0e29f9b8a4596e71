"""Manifests as they are written: YAML documents whose every field knows its file, line and path. Judges
nothing.

A value that a template engine fills in later (Helm, envsubst) is there and not known.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from diag.preflight.line import Line, line
from diag.text.errors import DiagError

_MOST_BYTES = 4 << 20  # etcd takes no object above 1.5 MiB
_MOST_NODES = 200_000  # a few lines of aliases can stand for billions
_MOST_FILES = 500
# Helm and Jinja; envsubst; "<your-image>" as guides write it. $(NAME) is Kubernetes' own and no template.
_TEMPLATE = re.compile(r"\{\{|\{%|\$\{[A-Za-z_]\w*\}|^<[\w -]+>$")
_SCRIPT_TEMPLATE = re.compile(r"\{\{|\{%|^<[\w -]+>$")  # ${NAME} is the shell's there


@dataclass(frozen=True, slots=True)
class Document:
    """`number` is its place in its file, and `within` its path there (of a List's items); a number below 0 means
    that it is written so in no file."""

    file: str
    value: Mapping[str, Any]
    lines: Mapping[tuple[str | int, ...], int] = field(repr=False)
    number: int = -1
    within: tuple[str | int, ...] = ()

    @property
    def kind(self) -> str:
        return str(self.value.get("kind") or "")

    @property
    def group(self) -> str:
        """ "batch.volcano.sh" of "batch.volcano.sh/v1alpha1"; "" of "v1"."""
        return str(self.value.get("apiVersion") or "").rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.root.at("metadata", "name").text or self.root.at("metadata", "generateName").text

    @property
    def namespace(self) -> str:
        return self.root.at("metadata", "namespace").text

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}" if self.name else self.kind

    @property
    def root(self) -> Field:
        return Field(self, (), self.value)


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a document, whether or not something is there."""

    document: Document
    path: tuple[str | int, ...]
    value: Any = None

    def at(self, *steps: str | int) -> Field:
        value = self.value
        for step in steps:
            if isinstance(value, Mapping):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
                value = value[step]
            else:
                value = None
        return Field(self.document, (*self.path, *steps), value)

    @property
    def there(self) -> bool:
        return self.value is not None

    @property
    def is_template(self) -> bool:
        return isinstance(self.value, str) and _TEMPLATE.search(self.value) is not None

    @property
    def has_template(self) -> bool:
        """Of a mapping: whether one of its values is filled in later."""
        inner = self.value if isinstance(self.value, Mapping) else ()
        return self.is_template or any(self.at(name).is_template for name in inner)

    @property
    def text(self) -> str:
        """ "" for what is not there, is not a scalar, or is filled in later."""
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        return str(self.value) if isinstance(self.value, (str, int, float)) and not self.is_template else ""

    @property
    def script(self) -> str:
        """Of a word of a command, or a file in a ConfigMap: its text, in which ${NAME} is the shell's own."""
        is_text = isinstance(self.value, str) and not _SCRIPT_TEMPLATE.search(self.value)
        return self.value if is_text else self.text

    @property
    def number(self) -> int | None:
        return int(self.text) if self.text.isdecimal() and len(self.text) < 10 else None

    @property
    def items(self) -> list[Field]:
        return [self.at(index) for index in range(len(self.value))] if isinstance(self.value, list) else []

    @property
    def mapping(self) -> dict[str, str]:
        """Of labels, selectors, data: those whose values are known."""
        if not isinstance(self.value, Mapping):
            return {}
        return {str(name): self.at(name).text for name in self.value if not self.at(name).is_template}

    @property
    def line(self) -> int:
        """Where it is, or where it would belong."""
        path = self.path
        while path and path not in self.document.lines:
            path = path[:-1]
        return self.document.lines.get(path, 1)

    @property
    def spot(self) -> str:
        """ "job.yaml:31 spec.template.spec.containers[trainer].env[NNODES]"."""
        return f"{self.document.file}:{self.line} {self.name}".rstrip()

    @property
    def name(self) -> str:
        """ "spec.template.spec.containers[trainer].env[NNODES]"."""
        text = ""
        value: Any = self.document.value
        for step in self.path:
            value = Field(self.document, (), value).at(step).value
            if isinstance(step, int):
                name = value.get("name") if isinstance(value, Mapping) else None
                text += f"[{name if isinstance(name, str) else step}]"
            else:
                text += f".{step}" if re.fullmatch(r"[\w-]+", step) else f"[{step}]"
        return text.lstrip(".")


def named(items: Field, name: str) -> Field | None:
    """The item of a list that has this name."""
    return next((item for item in items.items if item.at("name").text == name), None)


def read_manifests(places: Sequence[str]) -> tuple[list[Document], list[Line]]:
    """The documents of files, folders and - (stdin), and a line for each that cannot be read. Raises
    DiagError for a path that is not there."""
    texts, lines = read_places(places)
    documents, problems = read_texts(texts)
    return documents, [*lines, *problems]


def read_places(places: Sequence[str]) -> tuple[dict[str, str], list[Line]]:
    """The texts of files, folders and - (stdin) by the name that each is reported under, and a line for each folder
    that holds no manifests yet. Raises DiagError for a path that is not there."""
    texts: dict[str, str] = {}
    lines: list[Line] = []
    for place in places:
        for name, text in _texts(place, lines):
            texts[place if name in texts else name] = text
    return texts, lines


def read_texts(texts: Mapping[str, str]) -> tuple[list[Document], list[Line]]:
    documents: list[Document] = []
    lines: list[Line] = []
    for name, text in texts.items():
        found, problems = read_text(text, name)
        documents += found
        lines += problems
    return documents, lines


def _texts(place: str, lines: list[Line]) -> Iterator[tuple[str, str]]:
    if place == "-":
        yield "stdin", sys.stdin.read(_MOST_BYTES)
        return
    path = Path(place)
    try:
        if not path.is_dir():
            with path.open(encoding="utf-8", errors="replace") as file:
                yield path.name, file.read(_MOST_BYTES)
            return
        for marker, command in (("kustomization.yaml", "kubectl kustomize"), ("Chart.yaml", "helm template")):
            if (path / marker).exists():
                lines.append(line("manifest.generated", what=place, marker=marker, command=command))
                return
        named = (each for each in path.rglob("*") if each.suffix in (".yaml", ".yml", ".json"))
        for each in sorted(each for each in named if each.is_file())[:_MOST_FILES]:
            text = each.read_text(encoding="utf-8", errors="replace")[:_MOST_BYTES]
            yield str(each.relative_to(path)), text
    except OSError as error:
        hint = "--manifest takes a file, a folder, or - for stdin"
        raise DiagError(f"cannot read {place}: {error.strerror}", hint=hint, exit_code=2) from None


class _TooMuch(ValueError):
    pass


def read_text(text: str, file: str) -> tuple[list[Document], list[Line]]:
    """
    >>> documents, lines = read_text("kind: Service\\nmetadata:\\n  name: dpo\\n", "a.yaml")
    >>> documents[0].root.at("metadata", "name").spot, lines
    ('a.yaml:3 metadata.name', [])
    """
    documents: list[Document] = []
    try:
        for number, node in enumerate(yaml.compose_all(text, Loader=yaml.SafeLoader)):
            lines: dict[tuple[str | int, ...], int] = {}
            value = _plain(node, (), lines, [0])
            documents += _unlisted(Document(file, value, lines, number)) if isinstance(value, dict) else []
    except _TooMuch:
        return [], [line("manifest.too_many_aliases", what=file)]
    except yaml.reader.ReaderError:
        return [], [line("manifest.not_text", what=file)]
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        key = "template" if "{{" in text or "{%" in text else "not_yaml"
        why = getattr(error, "problem", None) or "too deep"
        return [], [line(f"manifest.{key}", what=file, where=where, why=why)]
    return documents, []


def _plain(
    node: yaml.Node | None,
    path: tuple[str | int, ...],
    lines: dict[tuple[str | int, ...], int],
    count: list[int],
) -> Any:
    count[0] += 1
    if count[0] > _MOST_NODES:
        raise _TooMuch
    if node is None:
        return None
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, inner in node.value:
            if not isinstance(key, yaml.ScalarNode):  # {{ .Values.image }} without quotes
                continue
            if key.tag == "tag:yaml.org,2002:merge":
                for part in inner.value if isinstance(inner, yaml.SequenceNode) else [inner]:
                    merged = _plain(part, path, lines, count)
                    found = {**merged, **found} if isinstance(merged, dict) else found
                continue
            lines[(*path, key.value)] = key.start_mark.line + 1
            found[key.value] = _plain(inner, (*path, key.value), lines, count)
        return found or ("{{ }}" if node.value else {})
    if isinstance(node, yaml.SequenceNode):
        return [_plain(inner, (*path, index), lines, count) for index, inner in enumerate(node.value)]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if node.tag == "tag:yaml.org,2002:bool":
        return str(node.value).lower() in ("true", "yes", "on")
    return str(node.value)


def _unlisted(document: Document) -> list[Document]:
    if document.kind != "List":
        return [document]
    found = []
    for item in document.root.at("items").items:
        if isinstance(item.value, dict):
            lines = {path[2:]: line for path, line in document.lines.items() if path[:2] == item.path}
            found.append(Document(document.file, item.value, lines, document.number, item.path))
    return found


_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30,
    "Ti": 1 << 40, "Pi": 1 << 50,
}  # fmt: skip


def quantity(text: str) -> int | None:
    """None for what is none.

    >>> quantity("64Gi") == 64 << 30, quantity("8"), quantity("0.5G"), quantity("64GB"), quantity("500m")
    (True, 8, 500000000, None, 0)
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)(m|[KMGTP]i|[kMGTP])?", text.strip())
    if match is None:
        return None
    return int(float(match[1]) / 1000) if match[2] == "m" else int(float(match[1]) * _UNITS[match[2] or ""])
