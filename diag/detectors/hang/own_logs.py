"""What a rank wrote into a log file of its own shortly before it stood still: a thread that has caught its exception often says
so only there."""

from __future__ import annotations

import re
from dataclasses import replace

from diag.detectors.hang.endless_waits import NOBODY
from diag.detectors.hang.verdict import Note, Verdict
from diag.state.view import JobView
from diag.text.units import format_seconds

_CAUSES = (*NOBODY.values(), "thread_ended", "task_done_missing")
_SECONDS = 600.0  # ours: a queue takes a while to run full, or empty
_LONGEST = 200
# A level or a word of a failure, a class of one, a status of HTTP with its name.
_FAILURE = re.compile(
    r"\b(?i:error|exception|fail(?:ed|ure|s)?|fatal|critical|denied|refused|aborted|cannot|unable to|no such|not found|timed out)\b"
    r"|\b[A-Z]\w*(?:Error|Exception|Exceeded)\b|\b[45]\d\d [A-Z]\w+"
)


def with_own_log(verdict: Verdict, job: JobView) -> Verdict:
    """Of the first culprit, where nobody is left that would end its wait. Unchanged where its last lines tell of no failure."""
    rank = verdict.culprit(job)
    if rank is None or verdict.cause not in _CAUSES:
        return verdict
    for fact in job.own_logs.of_rank(rank.rank):
        said = [line.strip() for line in fact.lines if _FAILURE.search(line)]
        if not said or not verdict.since - _SECONDS <= fact.written_at:
            continue
        last = said[-1] == fact.lines[-1].strip() and fact.written_at <= verdict.since
        ago = f", {format_seconds(verdict.since - fact.written_at)} before it stopped moving" if last else ""
        text = f'it wrote into {fact.file}: "{said[-1][:_LONGEST]}"{ago}'
        words = ", and ".join(filter(None, (verdict.words, text)))
        return replace(verdict, words=words).noted(Note("output", text, rank.rank))
    return verdict
