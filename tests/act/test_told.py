"""What is told of an action: the message, the journal of a second attempt, its replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.engine.journal import JournalReader, JournalWriter, segments
from diag.engine.replay import replay_records
from diag.model import Record
from diag.outputs.notify.journal import ACTIONS, FINDINGS, RunFollower
from diag.outputs.notify.message import compose
from diag.outputs.report import report
from diag.outputs.terminal.text import report_text
from diag.sources.host import run as run_source

ACTION = {
    "at": 1000.0, "what": "acts", "action": "restart:1", "finding": "hang", "class": "data_loading", "ranks": [3],
    "text": "acts: it has stood for 5 min; CMD is ended; the command is started again with --load /save",
}  # fmt: skip
PAST = {
    "number": 1, "began": 1.0, "ended": 1000.0, "action": "restart:1", "finding": "hang", "klass": "data_loading",
    "culprits": [3], "step": 7, "resumed": "with --load /save", "evidence": "/dumps/a.tar.gz",
    "steps": ["SIGTERM goes to 4 processes"], "steps_at": [1000.5],
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "lang", "title"),
    [
        ("acts", "en", "diag acts: restart, hang (data_loading): rank 3 - gpu-1"),
        ("left", "en", "diag could not act: restart, hang (data_loading): rank 3 - gpu-1"),
        ("acts", "zh", "diag 采取动作：restart, hang (data_loading): rank 3 - gpu-1"),
    ],
)
def test_an_action_is_a_message(what: str, lang: str, title: str) -> None:
    event = {
        "event": "action",
        "action": {**ACTION, "what": what},
        "run": {"host": "gpu-1", "run_dir": "/runs/1"},
    }
    message = compose(event, lang)

    assert message.title == title
    assert "started again with --load /save" in message.body and "diag replay /runs/1" in message.body


def test_the_last_message_of_an_attempt_says_that_it_is_started_again() -> None:
    outcome = {"acted": {"action": "restart:1", "text": "acts: it has stood for 5 min"}}
    event = {"event": "end", "returncode": 143, "outcome": outcome, "run": {}}

    assert "diag ended it, to start it again: acts: it has stood for 5 min" in compose(event, "en").body


def test_a_notifier_tells_nothing_of_the_attempts_before_its_own(tmp_path: Path) -> None:
    finding = {"id": "hang", "subject": "job", "severity": "critical", "ranks": [], "cause": "", "class": ""}
    line = json.dumps({"change": "opened", "finding": finding}) + "\n"
    (tmp_path / FINDINGS).write_text(line)
    (tmp_path / ACTIONS).write_text(json.dumps(ACTION) + "\n")
    begin = {name: (tmp_path / name).stat().st_size for name in (FINDINGS, ACTIONS)}
    follower = RunFollower(tmp_path, {}, begin)
    assert (follower.changes(), follower.actions()) == ([], [])

    with open(tmp_path / ACTIONS, "a") as file:
        file.write(json.dumps({**ACTION, "what": "left"}) + "\nno JSON\n")
    assert [one["what"] for one in follower.actions()] == ["left"]


def test_the_journal_of_the_next_attempt_goes_on_behind_that_of_the_first(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = JournalWriter(tmp_path)
        writer.write(Record("run", {"number": number}, at=float(number)))
        writer.close()

    assert [path.name for path in segments(tmp_path)] == [
        "journal-000001.jsonl.gz",
        "journal-000002.jsonl.gz",
    ]
    assert [one.payload["number"] for one in JournalReader(segments(tmp_path))] == [1, 2]


def replayed(*records: Record) -> dict[str, Any]:
    return report(replay_records(records)[0])


def test_replay_shows_the_attempts_before_and_judges_the_last_by_itself() -> None:
    told = {name: ACTION[name] for name in ("action", "finding")}
    document = replayed(
        Record("run", {"event": "started", "argv": ["a"], "pid": 1, "world_size": 0}, at=1.0),
        Record("run", run_source.acted("acts", "of the first", "h", **told).payload, at=900.0),
        Record("run", run_source.started_again(2, [PAST], "h").payload, at=1001.0),
        Record("run", run_source.acted("holds", "of the second", "h", **told).payload, at=1100.0),
    )

    (attempt,), (action,) = document["attempts"], document["actions"]
    assert attempt["steps"] == [{"at": 1000.5, "text": "SIGTERM goes to 4 processes"}]
    assert (attempt["class"], attempt["ranks"], attempt["iteration"]) == ("data_loading", [3], 7)
    assert action["text"] == "of the second"
    text = report_text(document, width=200)
    assert "for hang (data_loading) of rank 3, last step 7" in text
    assert "restart:1: of the second" in text and "of the first" not in text


def test_a_run_without_actions_has_none_of_their_keys() -> None:
    document = replayed(Record("run", {"event": "started", "argv": ["a"], "pid": 1}, at=1.0))

    assert not {"actions", "attempts"} & set(document)


def test_a_damaged_ledger_is_unparsed_and_not_believed() -> None:
    payload = {"event": "started_again", "number": 2, "earlier": [{"number": 1}]}

    assert "attempts" not in replayed(Record("run", payload, at=1.0))
