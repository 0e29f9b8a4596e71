"""One line of `diag doctor`; what each can say is in lines/*.yaml."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diag.text.tables import fill, load_table

if TYPE_CHECKING:
    from diag.knowledge.env_lint import Advice

_STATUSES = ("ok", "note", "problem", "critical", "not checked")


@dataclass(frozen=True, slots=True)
class Line:
    """`status` is ok, note, problem or not checked; `id` is the finding id that the trouble would have in a
    run.

    A note is worth reading and no trouble: a finding of level info where it has an id. `adds` are the options that
    CMD's `docker run` lacks.
    """

    what: str
    status: str
    said: str
    remedy: str = ""
    id: str = ""
    severity: str = "warning"
    adds: str = ""

    @property
    def level(self) -> str:
        """The severity of its finding."""
        return self.severity if self.status == "problem" else "info"

    def as_note(self, *, unless: bool = False) -> Line:
        """A problem that is not CMD's own, as a note without an id; the line itself with `unless`."""
        return self if unless or self.status != "problem" else replace(self, status="note", id="")


def line(key: str, **values: object) -> Line:
    """The line of a key, with `values` in the places of their names.

    >>> line("machine.open-files-few", soft=1024, hard=4096).said
    'limit of open files is 1024 (hard 4096)'
    """
    file, _, name = key.partition(".")
    kept = _lines(file)[name]
    texts = (kept.what, kept.said, kept.remedy, kept.adds)
    what, said, remedy, adds = (fill(text, **values) for text in texts)
    return replace(kept, what=what, said=said, remedy=remedy, adds=adds)


def advice_line(what: str, setting: str, advice: Advice) -> Line:
    """What is wrong with a variable: `setting` is NAME=VALUE, and where it was set."""
    status, said = "problem" if advice.severity.counts else "note", f"{setting}: {advice.does}"
    return Line(what, status, said, advice.instead, advice.id, advice.severity.value)


def table(file: str) -> Mapping[str, Any]:
    """What lines/FILE.yaml holds."""
    return load_table(Path(__file__).parent / "lines" / f"{file}.yaml")


@functools.cache
def _lines(file: str) -> dict[str, Line]:
    all_of = table(file)
    found = {}
    for name, entry in all_of["lines"].items():
        status = next(status for status in _STATUSES if status in entry)
        troubled = status in ("problem", "critical")
        found[name] = Line(
            entry.get("what", all_of.get("what", "")),
            "problem" if troubled else status,
            entry[status],
            entry.get("do", ""),
            entry.get("id", all_of.get("id", "") if troubled else ""),
            "critical" if status == "critical" else "warning",
            entry.get("adds", ""),
        )
    return found
