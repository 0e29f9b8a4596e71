"""What a feed is: a pure function from what was found to what is sent, and a sender."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from diag.outputs.notify.message import hidden
from diag.outputs.view.sentence import name_of
from diag.text.sanitize import clean
from diag.text.units import format_ranks, format_seconds

Options = Mapping[str, str]
Environment = Mapping[str, str]
Finding = Mapping[str, Any]
Change = Mapping[str, Any]  # a line of findings.jsonl


@dataclass(frozen=True, slots=True)
class Told:
    """What a feed made of it. `again`: it may be taken later."""

    accepted: bool
    text: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Telling:
    """Changes of findings, the newest of each; none of them where only the job's progress is told. `open` are all that are
    open then, the gravest first, and `since` when the first of them opened while none was. `job` is the hub's
    `job` of diag.report/1, where it was asked."""

    changes: tuple[Change, ...]
    open: tuple[Finding, ...]
    since: float | None
    run: Mapping[str, Any]
    job: Mapping[str, Any] | None = None

    @property
    def ends_untold(self) -> bool:
        """Nothing is open here, but what was is not over: another finding, of the job hub perhaps, says it better."""
        return not self.open and bool(self.changes) and is_replaced(self.changes[-1])

    @property
    def host(self) -> str:
        return str(self.run.get("host", ""))


def telling(event: Mapping[str, Any]) -> Telling:
    """Of what the notifier hands over, with what is secret in its texts as ***."""
    return Telling(
        tuple(hidden(event.get("changes", ()))),
        tuple(hidden(event.get("open", ()))),
        event.get("since"),
        event["run"],
        event.get("job"),
    )


@dataclass(frozen=True, slots=True)
class Feed:
    """`lacking` says why nothing can be sent from here, before the job starts; empty where it can. `payload` is None where
    there is nothing to send."""

    name: str
    options: tuple[str, ...]
    lacking: Callable[[Options, Environment], str]
    payload: Callable[[Telling, Options, Environment], Any]
    send: Callable[[Any, Options, Environment], Told]
    of_progress: bool = False  # it is told how far the job is, too
    acts: Callable[[Options], bool] = lambda options: False  # what it is told may end something


# --- what several of them say


def title(finding: Finding) -> str:
    """
    >>> title({"id": "hang", "class": "data_loading", "ranks": [3]})
    'hang (data_loading): rank 3'
    """
    return name_of(finding) + (f": {format_ranks(finding['ranks'])}" if finding["ranks"] else "")


def sentence(change: Change) -> str:
    """One line: what was found and what to do, or that it is over."""
    finding = change["finding"]
    if change["change"] == "resolved":
        over = finding.get("resolved_at")
        long = f"; it lasted {format_seconds(max(0.0, over - finding['since']))}" if over is not None else ""
        return clean(f"resolved: {title(finding)}{long}")
    advice = f" do: {finding['advice']}" if finding["advice"] else ""
    return clean(f"{title(finding)}: {finding['summary']}{advice}".replace("\n", " "))


def camel(name: str) -> str:
    """
    >>> camel("ib-fallback")
    'IbFallback'
    """
    return "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", name))


def cut(text: str, most: int) -> str:
    """Of at most so many bytes of UTF-8.

    >>> cut("abcdef", 5), cut("等等等", 8)
    ('ab...', '等...')
    """
    data = text.encode()
    return text if len(data) <= most else data[: most - 3].decode("utf-8", "ignore") + "..."


def of_this_node(finding: Finding, host: str) -> bool:
    """It is about this node or its GPUs, for sure: on another node the same command would come through.

    A finding without hosts that the job hub tells may be about any node.
    """
    here = host in finding["hosts"] if finding.get("hosts") else not finding.get("told_by")
    return bool(here) and is_node_fault(finding)


def is_replaced(change: Change) -> bool:
    """It is closed because another finding took its place: it is not over."""
    return bool(change.get("replaced"))


def is_node_fault(finding: Finding) -> bool:
    return finding.get("retryable") == "elsewhere"
