"""Markdown as GitHub reads it, for Python-Markdown: lists right below a paragraph, nesting by two or three blanks, `\\|` within
code in tables, words behind the language of a code block."""

from __future__ import annotations

import re

__all__ = ["as_python_markdown"]

_ITEM = re.compile(r"( *)([-*+]|\d{1,3}[.)])( +)(?=\S)")
_FENCE = re.compile(r"( *)(`{3,}|~{3,})(.*)")
_STEP = 4  # blanks that Python-Markdown wants a level


def as_python_markdown(text: str) -> str:
    """
    >>> print(as_python_markdown("Do:\\n- a\\n  - b\\n\\n  more of a"))
    Do:
    <BLANKLINE>
    - a
        - b
    <BLANKLINE>
        more of a
    """
    made: list[str] = []
    inside: list[int] = []  # columns at which the text of each open list item begins
    shift, fence = 0, ""
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        if fence:
            made.append(_moved(line, shift))
            if line.strip() == fence:
                fence = ""
            continue
        if not line.strip():
            made.append(line)
            continue
        item, begins_block = _ITEM.match(line), not made or not made[-1].strip()
        opens = _FENCE.match(line)
        if item or opens or begins_block:
            inside = [column for column in inside if column <= indent]
        if item and (inside or indent < _STEP):
            if not inside and not begins_block and not _is_item(made[-1]):
                made.append("")
            made.append(" " * _STEP * len(inside) + line[indent:])
            inside.append(item.end())
            continue
        shift = _STEP * len(inside) - (inside[-1] if inside else 0)
        extra = indent - inside[-1] if inside else 0
        if 0 < extra < _STEP:
            shift -= extra
        if opens:
            fence = opens[2]
        shown = opens[1] + opens[2] + _info(opens[3]) if opens else _row(line)
        made.append(_moved(shown, shift) if inside and indent >= inside[-1] else shown)
    return "\n".join(made)


def _is_item(line: str) -> bool:
    """Whether a list goes on here: the line is an item, or belongs to one."""
    return line.startswith(" ") or _ITEM.match(line) is not None


def _moved(line: str, columns: int) -> str:
    if not line.strip():
        return line
    return " " * columns + line if columns > 0 else line[min(-columns, len(line) - len(line.lstrip(" "))) :]


def _row(line: str) -> str:
    """Code in a row of a table: there GitHub wants a bar escaped, and Python-Markdown would show the escape."""
    if not line.lstrip().startswith("|"):
        return line
    return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), line)


def _info(words: str) -> str:
    """What a code block's first line says: `yaml walkthrough:rules/x.yaml` has the file's name as its title."""
    language, _, rest = words.strip().partition(" ")
    name = re.search(r"walkthrough:(\S+)", rest)
    return f'{language} title="{name[1]}"' if name else language
