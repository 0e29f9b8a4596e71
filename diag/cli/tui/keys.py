"""The keys, as the last line of the screen and as the page of help."""

from __future__ import annotations

from collections.abc import Sequence

from diag.cli.tui.line import Line, line, text_lines
from diag.text.columns import wrap

# In the order of what a person needs first; as many as fit are shown.
_MAIN = (
    ("q", "quit"), ("Enter", "details"), ("s", "stacks"), ("f", "findings"), ("t", "time"), ("d", "dump"), ("e", "explain"),
    ("/", "filter"), ("?", "help"), ("Tab", "pane"), ("c", "copy"), ("<>", "sort"),
)  # fmt: skip
_WITHIN = (("q", "back"), ("j k", "scroll"), ("Space b", "page"), ("c", "copy next command"), ("?", "help"))

_HELP = (
    ("q, Ctrl-C", "quit; on a page: q, Esc back"),
    ("up down, j k", "move; PgUp PgDn, Space b: a page; g G: first, last"),
    ("Tab", "next pane: findings, ranks, and on a large screen time line and details"),
    ("Enter", "details of the selected finding or rank, with stacks"),
    ("s", "merged stacks: where ranks differ, outliers first"),
    ("f", "all findings, those that are over, and what could not be checked"),
    ("t", "time line: steps, GPUs, memory against its limit"),
    ("d", "dump now, as `diag dump`: evidence of every rank, verdict, bundle"),
    ("e", "manual page of the chosen finding, as `diag explain`"),
    (
        "c",
        "copy the next command (OSC 52: over ssh too, where the terminal allows it); it is printed at the end as well",
    ),
    ("/", "filter ranks by text (hung, node-3, all_reduce) or numbers (8-15,31); Esc clears"),
    ("< >", "sort by another column; R reverses"),
    ("Ctrl-Z", "suspend"),
)
_MARKS = (
    "! before a rank: a finding names it. hung: culprit of a hang; stalled: waits for it.",
    "moved: time since its last progress. CPU: 100% is one core. A dash: not readable.",
    "LIVE: what diag sees now. LOST: connection lost, retrying. ENDED: the job or its diag ended; the last state is shown.",
    "RECORDED: evidence on disk.",
)


def key_line(width: int, *, within: bool) -> Line:
    pieces: list[tuple[str, str]] = []
    room = width
    for key, what in _WITHIN if within else _MAIN:
        room -= len(key) + 1 + len(what) + (1 if pieces else 0)
        if room < 0:
            break
        pieces += [(" " if pieces else "", ""), (key, "bold"), (f" {what}", "")]
    return tuple(pieces)


def help_lines(width: int) -> list[Line]:
    lines: list[Line] = []
    for key, what in _HELP:
        first, *rest = wrap(what, max(20, width - 16))
        lines += [((f"  {key:14}", "bold"), (first, "")), *text_lines(" " * 16 + text for text in rest)]
    lines.append(line(""))
    for text in _MARKS:
        lines += _indented(text, width)
    return lines


def _indented(text: str, width: int) -> Sequence[Line]:
    return text_lines(wrap(text, width, "  ", "  "))
