"""Values of the variables of a suspected rank, read from its memory while it runs on: those of the program's own
functions, and the arguments of the calls that they are in.

Secrets are hidden before anything is kept: of variables that are called like one nothing is shown, and of texts neither
what has the form of one nor what looks random.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from diag.launch.launchers.secrets import hidden_in_lines, is_secret, without_secrets
from diag.model import Record
from diag.model.observations import (
    AsyncTask,
    Frame,
    FrameVariables,
    Observation,
    Raised,
    SourceWorks,
    Variable,
    VariablesRead,
)
from diag.sources.payload import explained, guarded, integer, mapping, sequence, word
from diag.sources.stacks.facts import failure, owner
from diag.sources.stacks.mapped import mapped_of
from diag.sources.stacks.marks import folders_of, marks_of
from diag.sources.stacks.reached import reached_of
from diag.sources.stacks.remote_stack.values import HIDDEN, NO_SECRETS, Redact

SOURCE = "variables"
_MOST_TASKS, _MOST_RAISED = 64, 8
_MOST_FRAMES, _MOST_VARIABLES, _LONGEST, _LONGEST_NAME = 64, 64, 200, 120
_RUN = re.compile(r"[A-Za-z0-9]{20,}")
_RANDOM_OF_EACH = 3  # letters and digits in it, at least
_KEYS = ("key", "keys")
# Of remote_stack's, those that last.
FAILURES = {
    "denied": (
        "diag is not permitted to read the memory of the job's processes",
        "the same as for stacks: `diag doctor` shows what permits it",
    ),
    "unsupported": ("diag reads only the stacks of this interpreter", "Python 3.11, 3.12 or 3.13 with a GIL"),
}


def hides(name: str) -> bool:
    """Whether a variable of this name may hold a secret; of a.b["c"] the last name decides.

    >>> [hides(name) for name in ("token", "self.hub_token", "key", "cfg['api_key']", "max_tokens", "monkey", "passwd")]
    [True, True, True, True, False, False, True]
    """
    last = re.split(r"\W+", name.rstrip("']\""))[-1]
    return last.lower() in _KEYS or is_secret(last)


def hidden(text: str) -> str:
    """A text without what is known as a secret by its form, or looks like one: letters and digits in one long row.

    >>> hidden("runs/0213-15/step_00000400.pt"), hidden("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b")
    ('runs/0213-15/step_00000400.pt', '***')
    """
    text = hidden_in_lines(without_secrets(text))
    return _RUN.sub(lambda run: HIDDEN if _looks_random(run[0]) else run[0], text)


def _looks_random(run: str) -> bool:
    digits = sum(map(str.isdigit, run))
    return digits >= _RANDOM_OF_EACH and len(run) - digits >= _RANDOM_OF_EACH


REDACT = Redact(hidden, hides)


explain = functools.partial(explained, FAILURES)


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    payload = record.payload
    pid, _ = owner(payload)
    if "failed" in payload:
        yield from failure(record, SOURCE, explain)
        return
    yield SourceWorks(record.rank, SOURCE)
    frames = tuple(
        _frame(integer(thread["id"]), frame)
        for thread in sequence(payload["threads"])
        for frame in sequence(mapping(thread)["frames"])[:_MOST_FRAMES]
    )
    tasks = tuple(map(_task, sequence(payload.get("tasks", ()))[:_MOST_TASKS]))
    left_out = integer(payload.get("tasks_left_out", 0))
    marks = tuple(marks_of(sequence(payload.get("marks", ()))))
    clocks = mapping(payload.get("clocks", {}))
    monotonic, seconds = (float(clocks.get(name, 0.0)) for name in ("monotonic", "time"))
    reached = tuple(reached_of(sequence(payload.get("reached", ()))))
    folders = tuple(folders_of(sequence(payload.get("folders", ()))))
    mapped = tuple(mapped_of(sequence(payload.get("mapped", ()))))
    handled = tuple(
        (integer(thread["id"]), _raised(thread["handled"]))
        for thread in map(mapping, sequence(payload["threads"]))
        if "handled" in thread
    )
    yield VariablesRead(
        record.rank,
        pid,
        frames,
        tasks,
        marks,
        left_out,
        monotonic,
        seconds,
        reached,
        folders,
        mapped,
        handled,
    )


def _task(row: Any) -> AsyncTask:
    found = mapping(row)
    return AsyncTask(
        _places(found["frames"]),
        word(found.get("awaits")),
        word(found.get("name")),
        word(found.get("error"), _LONGEST),
        _places(found.get("raised", ())),
    )


def _places(rows: Any) -> tuple[Frame, ...]:
    frames = [sequence(one) for one in sequence(rows)[:_MOST_FRAMES]]
    return tuple(Frame(word(name), word(file, 4096), integer(line)) for name, file, line in frames)


def _frame(thread: int, row: Any) -> FrameVariables:
    values = tuple(_variables(sequence(row["values"])[:_MOST_VARIABLES]))
    place = word(row["function"]), word(row["file"], 4096), integer(row["line"])
    raised = tuple(map(_raised, sequence(row.get("raised", ()))[:_MOST_RAISED]))
    return FrameVariables(thread, *place, row.get("called") is True, values, raised)


def _raised(row: Any) -> Raised:
    found = mapping(row)
    kind, colon, said = word(found.get("error"), _LONGEST).partition(": ")
    # not with its class: a KeyError would have a secret
    return Raised(
        word(found.get("name"), _LONGEST_NAME), kind + colon + hidden(said), _places(found["frames"])
    )


def _variables(rows: Sequence[Any]) -> Iterator[Variable]:
    """A journal may come from elsewhere, written before a name was known to hold a secret."""
    for found, value in rows:
        name = word(found, _LONGEST_NAME)
        yield Variable(name, HIDDEN if hides(name) and value not in NO_SECRETS else word(value, _LONGEST))
