"""The statements of a program's text, by its tokens and their indentation, not parsed: text of a newer Python, or a part
of one, reads as well, and no nesting is too deep."""

from __future__ import annotations

import functools
import io
import itertools
import keyword
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diag.launch.launchers.secrets import hidden_in_lines

LONGEST = 120  # characters of a statement
LOOPS = ("while", "for")
FUNCTIONS = ("def", "class")
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
_SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)
_CHANGES = frozenset(("=", "+=", "-=", "*=", "/=", "//=", "%=", "|=", "&=", "^=", ">>=", "<<=", "**=", "@="))
# `NAME = value`, `self.name: Type = value`, as `Line.text` has them
_ASSIGNS = re.compile(r"[\w.]+(?: ?:[^=]+)? ?=(?!=) ?(?P<value>.+)")


@dataclass(slots=True)
class Line:
    """A logical line: a statement, or the head of a compound one."""

    first: int
    last: int
    depth: int
    word: str  # its first one, of `async for` the second
    text: str
    then: str = ""  # the first word after a colon at its end: `if done: break`
    names: tuple[str, ...] = ()  # that it reads or calls, as they are written: `self.done.all`
    target: str = ""  # the name with which it begins: what it assigns to, or `rows.append` of a call of it
    changes: bool = False  # it assigns to its target

    @property
    def value(self) -> str:
        """What is assigned; empty where nothing is, or in place (+=)."""
        found = _ASSIGNS.fullmatch(self.text) if self.changes else None
        return found["value"] if found is not None else ""


@functools.lru_cache(maxsize=8)  # the lines of a loop are asked for one after the other
def logical_lines(text: str) -> Sequence[Line]:
    """As far as it can be read: what follows an open bracket or quote that is never closed is missing."""
    found: list[Line] = []
    depth = brackets = 0
    line: list[tokenize.TokenInfo] = []
    then = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.INDENT:
                depth += 1
            elif token.type == tokenize.DEDENT:
                depth -= 1
            elif token.type == tokenize.NEWLINE and line:
                found.append(_line(line, depth, then))
                line, then, brackets = [], "", 0
            elif token.type not in _SKIPPED and token.type != tokenize.NEWLINE:
                if line and line[-1].string == ":" and not brackets:
                    then = token.string
                line.append(token)
                brackets += (token.string in "([{") - (token.string in ")]}") if token.string else 0
    except (tokenize.TokenError, SyntaxError):  # also IndentationError
        pass
    return found


def _line(tokens: Sequence[tokenize.TokenInfo], depth: int, then: str) -> Line:
    text = _in_one_row(tokens[0].string)
    for before, token in itertools.pairwise(tokens):
        row, column = before.end
        gap = row != token.start[0] or column < token.start[1]
        closes = token.string in _CLOSING
        if closes and gap and before.string == ",":
            text = text[:-1]
        text += " " if gap and not closes and before.string not in _OPENING else ""
        text += _in_one_row(token.string)
    word = tokens[1].string if tokens[0].string == "async" and len(tokens) > 1 else tokens[0].string
    chains = list(_chains(tokens))
    target, changes = chains[0][1] if chains and chains[0][0] == 0 else "", False
    if target:
        changes = _assigns(tokens, 2 * target.count(".") + 1)
    names = tuple(dict.fromkeys(name for at, name in chains if at or not changes))
    return Line(tokens[0].start[0], tokens[-1].end[0], depth, word, text, then, names, target, changes)


def _in_one_row(text: str) -> str:
    """A string of several rows; what is in one is left as it is."""
    return " ".join(text.split()) if "\n" in text else text


def _chains(tokens: Sequence[tokenize.TokenInfo]) -> Iterator[tuple[int, str]]:
    """Names with what is taken of them, and where they begin: `.fetch` of what a call gave. The name of an argument
    (`key=`) is none."""
    at, brackets = 0, 0
    while at < len(tokens):
        token = tokens[at]
        if token.type != tokenize.NAME or keyword.iskeyword(token.string):
            brackets += (token.string in "([{") - (token.string in ")]}") if token.string else 0
            at += 1
            continue
        began, name = at, token.string
        while at + 2 < len(tokens) and tokens[at + 1].string == "." and tokens[at + 2].type == tokenize.NAME:
            name += f".{tokens[at + 2].string}"
            at += 2
        at += 1
        of_argument = brackets > 0 and at < len(tokens) and tokens[at].string == "="
        if not of_argument:
            yield began, f".{name}" if began and tokens[began - 1].string == "." else name


def _assigns(tokens: Sequence[tokenize.TokenInfo], at: int) -> bool:
    """Behind the name at its beginning: `=`, `+=`, `: Type =`."""
    if at < len(tokens) and tokens[at].string == ":":
        at = next((later for later in range(at, len(tokens)) if tokens[later].string == "="), len(tokens))
    return at < len(tokens) and tokens[at].string in _CHANGES


def shown(text: str, most: int = LONGEST) -> str:
    text = hidden_in_lines(text)
    return text if len(text) <= most else text[: most - 4].rstrip() + " ..."


def heads_of(lines: Sequence[Line], at: int) -> Iterator[int]:
    """Of the blocks around a line, the innermost first, the function's last."""
    depth = lines[at].depth
    for head in range(at - 1, -1, -1):
        if lines[head].depth < depth:
            depth = lines[head].depth
            yield head
            if lines[head].word in FUNCTIONS:
                return


def end_of(lines: Sequence[Line], head: int) -> int:
    """The first line that is not in its block any more."""
    inner = range(head + 1, len(lines))
    return next((at for at in inner if lines[at].depth <= lines[head].depth), len(lines))
