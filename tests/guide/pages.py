"""Commands and outputs of a Markdown page: what stands in its fenced blocks and code spans, in their order."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "docs/tutorial.md",
    ROOT / "docs/zh/index.md",
    ROOT / "docs/zh/tutorial.md",
    *sorted((ROOT / "docs/howto").glob("*.md")),
    *sorted((ROOT / "docs/zh/howto").glob("*.md")),
]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(diag [^`]+)`")
_OPERATORS = frozenset(["|", "||", "&&", ";", ">", ">>", "<"])


@dataclass(frozen=True)
class Block:
    kind: str  # the word behind the fence: bash, console, text ...
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(kind, text) for kind, text in _FENCE.findall(page.read_text())]


def lines(block: Block) -> list[str]:
    """Its commands, one a logical line and without comments; of a console those behind the prompt; a loop is
    one command."""
    if block.kind == "console":
        return [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    joined = re.sub(r"\\\n\s*", "", block.text)
    if re.search(r"^for .*\bdo\b", joined, re.MULTILINE):
        return ["\n".join(re.sub(r"\s+# .*", "", line) for line in joined.splitlines())]
    return [text for line in joined.splitlines() if (text := without_comment(line))]


def is_loop(line: str) -> bool:
    """The script of docs/howto/collected-evidence.md, which needs a job: run in test_tutorial.py."""
    return "\nfor " in line


def without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#\s.*", "", line).strip()


def commands(page: Path) -> list[str]:
    return [
        line for block in blocks(page) if block.kind in ("bash", "console", "sh") for line in lines(block)
    ]


def spans(page: Path) -> list[str]:
    """`diag ...` within the text and its tables, outside of fenced blocks."""
    return _SPAN.findall(_FENCE.sub("", page.read_text()).replace("\\|", "|"))


def alternatives(line: str) -> list[str]:
    """`diag replay A | B` with words in capitals means one or the other, and is no pipe.

    >>> alternatives("diag replay RUN_DIR | BUNDLE.tar.gz"), alternatives("zcat a | diag replay -")
    (['diag replay RUN_DIR', 'diag replay BUNDLE.tar.gz'], ['zcat a | diag replay -'])
    """
    first, *others = line.split(" | ")
    if not others or not all(re.fullmatch(r"[A-Z_]+(\.[a-z.]+)?", other) for other in others):
        return [line]
    return [first, *(f"{first.rpartition(' ')[0]} {other}" for other in others)]


def simple_commands(line: str) -> list[tuple[dict[str, str], list[str]]]:
    """The commands that a line joins, each as the variables in front of it and its words; `...` at an end is
    left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    found: list[tuple[dict[str, str], list[str]]] = [({}, [])]
    skip = False
    for word in lexer:
        if word in _OPERATORS:
            skip = word in (">", ">>", "<")
            if not skip:
                found.append(({}, []))
            continue
        if skip:  # the file of a redirection
            skip = False
            continue
        variables, words = found[-1]
        if not words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word)):
            variables[match[1]] = match[2]
        elif word != "...":
            words.append(word)
    return found
