"""`diag doctor --manifest FILE --fix`: the manifests with every problem mended that has one remedy. What trains is left
alone: ranks, nodes, flags, batch sizes.

One problem is mended at a time and everything is judged anew, so that what is printed is what diag finds nothing
wrong with, however many steps it took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from diag.preflight.line import Line
from diag.preflight.manifest import manifest_lines
from diag.preflight.manifest.edits import Edit, ManifestLine
from diag.preflight.manifest.reading import read_places, read_texts
from diag.preflight.manifest.yaml_text import Changed, add, drop, put, span, swap, with_document

_MOST_STEPS = 1000  # each step reads all of it anew


@dataclass(frozen=True, slots=True)
class Fixed:
    """`text` are all manifests, in one file. `changes` say what was changed, `left` are the problems that still are
    there, and `without_comments` the files whose comments could not be kept."""

    text: str
    changes: tuple[str, ...]
    left: tuple[Line, ...]
    without_comments: tuple[str, ...] = ()


def fix_manifests(places: Sequence[str], rdma: str = "") -> Fixed:
    """Of files, folders and - for stdin. Raises DiagError for a path that is not there."""
    texts, unread = read_places(places)
    found = fix_texts(texts, rdma)
    return Fixed(found.text, found.changes, (*unread, *found.left), found.without_comments)


def fix_texts(texts: Mapping[str, str], rdma: str = "") -> Fixed:
    """Pure; of manifests by the name of their file.

    >>> text = "kind: Pod\\nmetadata: {name: a}\\nspec:\\n  containers:\\n  - command: [torchrun, train.py]  # mine\\n"
    >>> found = fix_texts({"a.yaml": text})
    >>> print(found.text, *found.changes, sep="\\n")
    kind: Pod
    metadata: {name: a}
    spec:
      containers:
      - command: [torchrun, train.py]  # mine
      restartPolicy: Never
    <BLANKLINE>
    Pod/a spec.restartPolicy: Never
    """
    current, bare = dict(texts), dict.fromkeys(texts, False)
    changes: list[str] = []
    tried: set[str] = set()
    lines: list[Line] = []
    for _ in range(_MOST_STEPS):
        documents, lines = read_texts(current)
        lines += manifest_lines(documents, rdma)
        found = next(((line, key) for line, key in _open(lines) if key not in tried), None)
        if found is None:
            break
        line, key = found
        tried.add(key)
        try:
            changed, kept = _with(current, line.edits)
        except (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError):
            continue  # written in a way that it cannot be changed in: it is left
        current |= changed
        bare |= {file: True for file in kept if not kept[file]}
        changes += (_said(edit) for edit in line.edits)
    left = tuple(line for line in lines if line.status == "problem")
    parts = (text if text.endswith("\n") else text + "\n" for text in current.values())
    text = "---\n".join(part for part in parts if part.strip())
    return Fixed(text, tuple(changes), left, tuple(file for file, lost in bare.items() if lost))


def _open(lines: Sequence[Line]) -> Iterator[tuple[ManifestLine, str]]:
    """What can be mended, with what tells one remedy from another."""
    for line in lines:
        if line.status == "problem" and isinstance(line, ManifestLine) and line.edits:
            yield line, "\n".join(_said(edit) for edit in line.edits)


def _with(texts: Mapping[str, str], edits: Sequence[Edit]) -> tuple[dict[str, str], dict[str, bool]]:
    """The files that change, and whether each kept its comments. Items of lists are dropped last: the others are
    counted from the beginning."""
    changed: dict[str, str] = {}
    kept: dict[str, bool] = {}
    dropped = sorted((edit for edit in edits if edit.how == "drop"), key=_path, reverse=True)
    for edit in (*(edit for edit in edits if edit.how != "drop"), *dropped):
        file = edit.place.document.file
        done = _one(changed.get(file, texts[file]), edit)
        changed[file] = done.text
        kept[file] = kept.get(file, True) and done.keeps_comments
    return changed, kept


def _path(edit: Edit) -> list[tuple[int, str | int]]:
    return [(isinstance(step, int), step) for step in edit.place.path]


def _one(text: str, edit: Edit) -> Changed:
    """Of the text only the document that is meant is read: there may be many."""
    if edit.how == "document":
        return with_document(text, edit.value)
    document = edit.place.document
    begin, end = span(text, document.number)
    number = document.number if (begin, end) == (0, len(text)) else 0
    where = (text[begin:end], number, (*document.within, *edit.place.path))
    if edit.how == "put":
        done = put(*where, edit.value)
    elif edit.how == "add":
        done = add(*where, edit.value)
    elif edit.how == "swap":
        done = swap(*where, edit.old, edit.value)
    else:
        done = drop(*where)
    mark = "---\n" if begin and not done.text.startswith("---") else ""  # written anew
    return Changed(text[:begin] + mark + done.text + text[end:], done.keeps_comments)


def _said(edit: Edit) -> str:
    document = edit.place.document
    if edit.how == "document":
        return f"{edit.value['kind']}/{edit.value['metadata']['name']}: new"
    where = f"{document.title} {edit.place.name}"
    if edit.how == "swap":
        return f"{where}: {edit.value.strip() or 'without'} {'for ' * bool(edit.value.strip())}{edit.old.strip()}"
    if edit.how == "drop":
        return f"{where}: removed"
    return f"{where}: {'+ ' * (edit.how == 'add')}{_flow(edit.value)}"


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return str(text).removesuffix("\n").removesuffix("\n...")
