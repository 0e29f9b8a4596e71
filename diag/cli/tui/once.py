"""The same picture as plain text, once: for pipes, CI, dumb terminals."""

from __future__ import annotations

from collections.abc import Mapping

from diag.cli.tui import rendering, spark
from diag.cli.tui.line import Line, plain
from diag.cli.tui.state import State
from diag.cli.tui.table import Table
from diag.cli.tui.words import say, speak, told
from diag.outputs.terminal.text import report_text
from diag.text.columns import wrap

_MOST_SERIES = 32
_MOST_ROWS = 40  # of the table; culprits stand first


def picture(
    state: State, source: str, *, width: int, colour: bool, lang: str, marks: str = spark.PLAIN
) -> str:
    """Ends without a newline."""
    speak(lang)
    head = [plain(line) for line in rendering.head_lines(state, source, "", 10_000)]
    parts = ["\n".join("\n".join(wrap(text, width, "", "  ")) for text in head)]
    report = {**state.report, "job": state.report["job"]}
    heading = "" if report["sentence"] else say("no report yet")
    parts.append(report_text(report, colour=colour, width=width, heading=heading, lang=lang))
    if state.rows:
        table = Table(state, width)
        rows = [plain(table.row(index)) for index in range(min(len(table.rows), _MOST_ROWS))]
        more = (
            [say(f"  and {len(table.rows) - _MOST_ROWS} more ranks (--json has them)")]
            if len(table.rows) > _MOST_ROWS
            else []
        )
        parts.append("\n".join([say("Ranks:"), plain(table.head()), *rows, *more]))
    if state.stacks:
        parts.append("\n".join([say("Stacks:"), *_plain(rendering.stacks_lines(state, width))]))
    parts.append(
        "\n".join([say("Time line:"), *_plain(spark.timeline_lines(state, width, marks, _MOST_SERIES))])
    )
    command: Mapping[str, str] = state.report
    if command["next_command"]:
        parts.append(f"{say('next:')} {command['next_command']}   ({told(command['next_reason'])})")
    return "\n\n".join(parts)


def _plain(lines: list[Line]) -> list[str]:
    return [plain(line) for line in lines]
