"""The job in one sentence, the same for every face: how it is or how it ended, what is open, what is over.

Times of day in it are of this machine's zone. `sentence_times` has the moments that they are, for a reader in
another one.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from diag.model import Severity
from diag.state.savefacts import format_save
from diag.text.sanitize import clean
from diag.text.units import format_ranks, format_seconds, format_time

_MOST_NAMED = 3  # findings that are over, in one sentence
_HOW_STOOD = {"hang": "hanging", "held-up": "being held up for"}
_EARLIEST = 1.0  # of a log from stdin whose lines have no times, all is at zero


def name_of(finding: Mapping[str, Any]) -> str:
    klass = finding.get("class")
    return clean(finding["id"] + (f" ({klass})" if klass else ""))


def split(document: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The findings of a report that are open, and those that are over."""
    open_now = [finding for finding in document.get("findings", ()) if finding.get("resolved_at") is None]
    return open_now, list(document.get("past", ()))


def has_ended(document: Mapping[str, Any]) -> bool:
    return document.get("job", {}).get("returncode") is not None


# --- times


def lasted(finding: Mapping[str, Any]) -> float | None:
    """How long it was, from when it began to when it was over; None where its evidence has no times."""
    since, resolved = finding.get("since") or 0.0, finding.get("resolved_at")
    return max(0.0, resolved - since) if resolved is not None and since >= _EARLIEST else None


def format_span(finding: Mapping[str, Any], now: float | None = None) -> str:
    """From when to when a finding that is over was; empty where its evidence has no times.

    >>> import os, time; os.environ["TZ"] = "UTC"; time.tzset()
    >>> format_span({"since": 1000.0, "resolved_at": 1031.2}, 1040.0)
    '00:16:40-00:17:11'
    """
    if lasted(finding) is None:
        return ""
    since, over = finding["since"], finding["resolved_at"]
    return f"{format_time(since, now)}-{format_time(over, since)}"


def _times(document: Mapping[str, Any]) -> dict[str, float]:
    """By the text that `job_sentence` may have for them."""
    now, ended = document["job"].get("at"), document["job"].get("ended_at")
    _, over = split(document)
    times = {}
    for finding in over[:_MOST_NAMED]:
        if lasted(finding) is not None:
            since, resolved = finding["since"], finding["resolved_at"]
            times[format_time(since, now)] = since
            times[format_time(resolved, since)] = resolved
    if ended is not None:
        times[format_time(ended, now)] = ended
    return times


# --- the sentence

_GOES_ON = ("starting", "running", "checkpointing")


def retell(document: dict[str, Any]) -> dict[str, Any]:
    """The report with its sentence, made anew from the rest of it."""
    document["sentence"] = job_sentence(document)
    document["sentence_times"] = {
        text: at for text, at in _times(document).items() if text in document["sentence"]
    }
    return document


def job_sentence(document: Mapping[str, Any]) -> str:
    """The job in one sentence, of a `diag.report/1` document."""
    job = document.get("job", {})
    ended = has_ended(document)
    parts = [_lead(document)]
    if job.get("phase") and not ended and job.get("state") != "unknown":
        parts.append("phase not known" if job["phase"] == "not_known" else f"phase {job['phase']}")
    if job.get("iteration") is not None:
        total = job.get("total_iterations")
        step = job.get("step_words") or f"iteration {job['iteration']}"
        parts.append(step + (f" of {total}" if total else ""))
    pace = (job.get("steps") or {}).get("seconds_now")
    if pace:
        parts.append(f"{format_seconds(pace)} a step")
    if job.get("save"):
        parts.append(format_save(job["save"]))
    # of a log with one rank, or none, it is not known that there are no others
    if job.get("world_size", 0) > 1 or (job.get("world_size") and not document.get("log")):
        parts.append(f"{job.get('ranks_seen', 0)} of {job['world_size']} ranks seen")
    open_now, over = split(document)
    counts = Counter(finding.get("severity", "") for finding in open_now)
    clause = [
        f"{counts[severity]} {severity}" for severity in ("critical", "warning", "info") if counts[severity]
    ]
    if clause:
        parts.append(", ".join(clause) + (" open when it ended" if over and ended else ""))
    else:
        parts.append("nothing open" if over else "nothing found")
    if over:
        parts.append(_format_over(document, over))
    unchecked = len(document.get("not_checked", ()))
    if unchecked:
        parts.append(f"{unchecked} not checked")
    return "; ".join(parts) + "."


def _lead(document: Mapping[str, Any]) -> str:
    job = document.get("job", {})
    state = job.get("state", "unknown")
    if state == "unknown":
        return "Job state unknown"
    if has_ended(document):
        return f"The job {outcome(document)}"
    if document.get("log") and state in _GOES_ON:  # it may be done, killed, or go on
        return "The log does not tell how the job ended"
    return f"At the end of its log the job is {state}" if document.get("log") else f"The job is {state}"


def outcome(document: Mapping[str, Any]) -> str:
    """How a job ended, in words.

    >>> outcome({"job": {"state": "finished", "returncode": 0}, "findings": []})
    'finished (exit 0)'
    """
    job = document["job"]
    log = document.get("log")
    clause = str(job["state"])
    if log is None:  # a log shows that the job failed, and not with which code
        clause += f" (exit {job['returncode']})"
    ended = job.get("ended_at")
    if (
        job["returncode"] == 0
        or ended is None
        or ended < _EARLIEST
        or (log is not None and log.get("ended") is None)
    ):
        return clause
    clause += f" at {format_time(ended, job.get('at'))}"
    open_now, _ = split(document)
    for one in open_now:
        if one["id"] in _HOW_STOOD and Severity(one["severity"]).counts and _EARLIEST <= one["since"] < ended:
            return f"{clause}, after {_HOW_STOOD[one['id']]} {format_seconds(ended - one['since'])}"
    return clause


def _format_over(document: Mapping[str, Any], over: Sequence[Mapping[str, Any]]) -> str:
    """
    >>> _format_over({"job": {}}, [{"id": "hang", "class": "data_loading", "ranks": [1], "since": 0.0, "resolved_at": 9.0}])
    '1 over: hang (data_loading), rank 1'
    """
    now = document["job"].get("at")
    named = []
    for finding in over[:_MOST_NAMED]:
        clause = name_of(finding) + (f", {format_ranks(finding['ranks'])}" if finding["ranks"] else "")
        length = lasted(finding)
        named.append(
            clause
            + (f", {format_span(finding, now)} ({format_seconds(length)})" if length is not None else "")
        )
    count = len(over) + int(document.get("past_left_out", 0))
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return f"{count} over: {' and '.join(named)}{more}"


def summary_line(document: Mapping[str, Any], *, seconds: float | None = None, run_dir: str = "") -> str:
    """What a run came to, printed once at its end. One line.

    >>> summary_line({"job": {"state": "failed", "returncode": 1}, "findings": [], "not_checked": []}, seconds=61)
    'diag: job failed (exit 1) after 1 min 1 s; nothing found'
    """
    job = document["job"]
    clause = f"diag: job {job['state']}"
    if job.get("returncode") is not None:
        clause += f" (exit {job['returncode']})"
    if seconds is not None:
        clause += f" after {format_seconds(seconds)}"
    if job.get("steps"):
        from diag.state.steptimes import steps_sentence  # `diag dump` must not wait for it

        clause += f"; {steps_sentence(job['steps'])}"
    if job.get("speed"):
        from diag.outputs.view.speed import speed_clause

        clause += f"; {words}" if (words := speed_clause(job["speed"])) else ""
    open_now, over = split(document)
    parts = []
    for severity in reversed(Severity):
        names = [name_of(finding) for finding in open_now if finding["severity"] == severity.value]
        if names:
            distinct = list(dict.fromkeys(names))
            parts.append(
                f"{len(names)} {severity.value}: {', '.join(distinct[:4])}{', ...' if distinct[4:] else ''}"
            )
    if parts:
        clause += ("; open when it ended: " if over and has_ended(document) else "; found ") + "; ".join(
            parts
        )
    else:
        clause += "; nothing open" if over else "; nothing found"
    if over:
        clause += f"; {_format_over(document, over)}"
    if document["not_checked"]:
        clause += f"; {len(document['not_checked'])} not checked"
    counts = [finding for finding in (*open_now, *over) if Severity(finding["severity"]).counts]
    if counts:
        clause += f"; what to do: diag explain {shlex.quote(clean(_main(counts)['id']))}"
    if kept := dict.fromkeys(one["bundle"] for one in (*open_now, *over) if one.get("bundle")):
        clause += f"; evidence kept when it was told: {' '.join(shlex.quote(clean(path)) for path in kept)}"
    if not run_dir:
        return clause
    return clause + (
        f"; look again: diag replay {shlex.quote(clean(run_dir))} --serve"
        if counts
        else f"; evidence in {clean(run_dir)}"
    )


def _main(findings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first of the gravest: others follow from it more often than it from them."""
    return min(findings, key=lambda finding: (-Severity(finding["severity"]).level, finding["since"]))
