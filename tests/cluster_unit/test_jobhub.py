"""The job hub: what it takes, what it answers, whom it knows, and that its journal tells the same again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.agent.cluster.jobhub import JobHub
from diag.agent.record_feed import HubClock
from diag.detectors.cluster import make_job_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.model import Change, Record
from diag.model.observations import Observation, RankFound
from diag.sources.digest import SOURCE
from diag.sources.parsers import PARSERS
from tests.cluster_unit.nodes import NodeEngine
from tests.facts import ALL_REDUCE, found, stack, tree


@pytest.fixture
def job_hub(tmp_path: Path) -> Iterator[JobHub]:
    made = JobHub("run-node-0", "node-0", HubClock(), lambda: None, tmp_path)
    yield made
    made.close()


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def document(node: NodeEngine, detail: int = 0, **parts: Any) -> dict[str, Any]:
    """As Member makes it."""
    made = node.digest(time.time(), detail)
    return {**made, "wall": time.time(), "port": 9095, "scheme": "http", "roster_seen": [], **parts}


def with_rank(number: int, *more: Observation) -> NodeEngine:
    node, now = NodeEngine(number), time.time()
    place = found(number)
    node.tell(now - 1.0, RankFound(number, place.placement, place.command), tree(number, now - 1.0), *more)
    node.engine.advance(now)
    return node


def test_answer_tells_when_to_report_again_the_verdict_and_the_roster_where_it_is_news(
    job_hub: JobHub,
) -> None:
    node = with_rank(1)

    first = job_hub.take(document(node), "10.0.0.2", now=True)
    second = job_hub.take(
        document(node, roster_seen=["run-node-0", first["roster_version"]]), "10.0.0.2", now=True
    )

    assert first["hub"] == "run-node-0" and first["every"] == 5.0 and first["over"] is False
    (entry,) = first["roster"]
    assert (entry["host"], entry["url"], entry["node_rank"]) == ("node-1", "http://10.0.0.2:9095", 1)
    assert [place[0] for place in entry["ranks"]] == [1]
    assert "roster" not in second
    assert second["verdict"]["event"] == "verdict"


def test_node_at_an_ipv6_address_is_found_there(job_hub: JobHub) -> None:
    answer = job_hub.take(document(with_rank(1)), "fd00::2")

    assert answer["roster"][0]["url"] == "http://[fd00::2]:9095"


def test_stacks_whose_frames_are_not_known_here_are_asked_for(job_hub: JobHub) -> None:
    now = time.time()
    node = with_rank(1, stack(1, now - 1.0, ALL_REDUCE))
    whole = document(node, 1)

    assert whole["ranks"][0]["threads"]
    assert job_hub.take({**whole, "frames": {}}, "10.0.0.2")["want"] is True
    assert job_hub.take(whole, "10.0.0.2")["want"] is False
    assert job_hub.take({**whole, "frames": {}}, "10.0.0.2")["want"] is False


@pytest.mark.parametrize(
    ("change", "error"),
    [({"schema": "diag.digest/9"}, ValueError), ({"node": {}}, KeyError), ({"wall": "noon"}, ValueError),
     ({"ranks": 5}, TypeError), ({"ranks": [{}]}, KeyError), ({"port": None}, TypeError)],
)  # fmt: skip
def test_what_is_no_digest_of_this_version_is_refused_and_leaves_no_trace(
    job_hub: JobHub, change: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        job_hub.take({**document(with_rank(1)), **change}, "10.0.0.2")

    assert job_hub.roster.hubs == {}
    job_hub.take(document(NodeEngine(0)), "", now=True)
    assert [node.digest.host for node in job_hub.engine.job.cluster.current()] == ["node-0"]


@pytest.mark.parametrize(("ahead", "skew"), [(120.0, 120.0), (-300.0, -300.0), (0.2, None)])
def test_clock_of_a_node_is_compared_only_beyond_the_time_of_the_exchange(
    job_hub: JobHub, ahead: float, skew: float | None
) -> None:
    job_hub.take(document(NodeEngine(1), wall=time.time() + ahead), "10.0.0.2", now=True)

    told = job_hub.engine.job.cluster.current()[0].digest.skew_seconds

    assert told == (None if skew is None else pytest.approx(skew, abs=1.0))


def test_nodes_of_the_roster_before_are_missed_when_they_never_report(job_hub: JobHub) -> None:
    entry = {"run_id": "run-node-7", "host": "node-7", "node_rank": 7, "url": "http://10.0.0.8:9095", "gone": False, "nodes": 8,
             "rendezvous": "", "world_size": 8, "ranks": [[7, 0, 1007, 777]]}  # fmt: skip

    job_hub.seed([entry, {**entry, "run_id": "run-node-6", "gone": True}, {**entry, "run_id": "run-node-0"}])
    job_hub.take(document(NodeEngine(0)), "", now=True)

    with job_hub.lock:
        assert sorted(job_hub.engine.job.cluster.nodes) == ["run-node-0", "run-node-7"]
        assert job_hub.engine.job.ranks[7].placement.host == "node-7"
        assert job_hub.engine.job.sources.unparsed_total == 0


def test_address_that_was_sent_away_is_a_note_for_the_job_hubs_own_node(job_hub: JobHub) -> None:
    job_hub.refuse("10.0.0.9", "another token")

    own = job_hub.take(document(NodeEngine(0)), "", now=True)["verdict"]["fact"]
    other = job_hub.take(document(NodeEngine(1)), "10.0.0.2", now=True)["verdict"]["fact"]

    assert any(
        "10.0.0.9" in line["what"] and "another token" in line["reason"] for line in own["not_checked"]
    )
    assert "10.0.0.9" not in json.dumps(other)


def test_hub_that_was_started_anew_takes_the_place_of_those_that_left(job_hub: JobHub) -> None:
    for number in range(20):
        job_hub.take(document(NodeEngine(1, run_id=f"run-{number}")), "10.0.0.2")
        job_hub.take(document(NodeEngine(2, run_id=f"other-{number}")), "10.0.0.3")
        last = document(NodeEngine(1, run_id=f"run-{number}"))
        last["node"]["leaving"] = True
        job_hub.take(last, "10.0.0.2")

    kept = [run_id for run_id in job_hub.roster.hubs if run_id.startswith("run-")]
    assert kept == ["run-19"]
    assert len(job_hub.roster.hubs) == 21  # those of node 2 never said that they leave: they are missed


def test_frames_that_are_still_shown_are_asked_for_again_once_the_oldest_were_let_go(
    job_hub: JobHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diag.agent.cluster.jobhub.MOST_FRAMES", 8)
    monkeypatch.setattr("diag.state.cluster.MOST_FRAMES", 8)
    shown = document(with_rank(1, stack(1, time.time() - 1.0, ALL_REDUCE)), 1)
    keys = set(shown["frames"])
    job_hub.take(shown, "10.0.0.2", now=True)

    for number in range(40):
        other = document(NodeEngine(2))
        other["frames"] = {f"key {number}": [["f", "a.py", number]]}
        job_hub.take(other, "10.0.0.3", now=True)

    known = job_hub.engine.job.cluster.frames
    assert len(known) <= 8 and "key 39" in known and not keys & known.keys()
    assert job_hub.take({**shown, "frames": {}}, "10.0.0.2")["want"] is True
    assert job_hub.take(shown, "10.0.0.2", now=True)["want"] is False
    assert keys <= known.keys()


def test_address_that_was_sent_away_last_is_noted_however_many_were_before(job_hub: JobHub) -> None:
    for number in range(1000):
        job_hub.refuse(f"10.0.{number // 250}.{number % 250}", "another token")

    assert len(job_hub.refused) == 256
    assert list(job_hub.refused)[-1] == "10.0.3.249"


def test_many_nodes_report_less_often_and_are_told_only_of_those_that_could_take_over(
    job_hub: JobHub,
) -> None:
    entry = {
        "host": "n",
        "url": "http://10.1.0.1:9095",
        "nodes": 1000,
        "rendezvous": "",
        "world_size": 1000,
        "ranks": [],
    }
    for number in range(1000):
        job_hub.roster.hubs[f"run-{number}"] = {
            **entry,
            "run_id": f"run-{number}",
            "node_rank": number,
            "gone": number < 3,
        }
    job_hub.roster.renew()

    answer = job_hub.reply("run-999", {})

    assert answer["every"] == 20.0
    assert [one["node_rank"] for one in answer["roster"]] == list(range(3, 19))


def test_it_is_over_when_every_node_said_so(job_hub: JobHub) -> None:
    job_hub.take(document(NodeEngine(0)), "")
    one = document(NodeEngine(1))
    assert job_hub.take({**one, "node": {**one["node"], "returncode": 0}}, "10.0.0.2")["over"] is False

    two = document(NodeEngine(0))
    assert job_hub.take({**two, "node": {**two["node"], "leaving": True}}, "")["over"] is True


def test_journal_of_the_job_hub_tells_what_was_said_live(tmp_path: Path) -> None:
    live = JobHub("run-node-0", "node-0", HubClock(), lambda: None, tmp_path)
    nodes = [NodeEngine(0), NodeEngine(0, host="other")]  # one number twice
    for node in (*nodes, *nodes):
        live.take(document(node), "" if node is nodes[0] else "10.0.0.2", now=True)
    until(lambda: any(change.finding.id == "launch-mismatch" for change in live.engine.history()))
    live.take(document(nodes[0]), "", now=True)
    live.close()

    reader = JournalReader(segments(tmp_path / "job"))
    again, changes = replay_records(reader)

    assert reader.policy == "job"
    assert [(one.kind, one.finding.id, one.finding.cause) for one in changes] == [
        (one.kind, one.finding.id, one.finding.cause) for one in live.engine.history()
    ]  # fmt: skip
    assert [one.summary for one in again.active()] == [one.summary for one in live.engine.active()]
    # and one that was written before headers named a policy
    of_before, _ = replay_records(list(JournalReader(segments(tmp_path / "job"))))
    assert of_before.active() == again.active()


told = st.one_of(
    st.builds(found, st.integers(0, 1)),
    st.builds(lambda number, cpu: tree(number, 1.0, cpu=cpu), st.integers(0, 1), st.floats(0, 100)),
    st.builds(lambda number: stack(number, 1.0, ALL_REDUCE), st.integers(0, 1)),
)


@settings(max_examples=60, deadline=None)
@given(
    story=st.lists(
        st.tuples(st.floats(0.1, 40.0), st.integers(0, 1), st.one_of(st.none(), told)), max_size=40
    )
)
def test_digests_told_again_lead_to_the_same_changes(
    story: list[tuple[float, int, Observation | None]],
) -> None:
    """Whatever the nodes saw in whatever rhythm, with checks of a timer in between, over JSON."""
    nodes, now = [NodeEngine(0), NodeEngine(1)], 1000.0
    live, said, journal = Engine(PARSERS, make_job_detectors(), PRECEDENCE), [], []
    for pause, number, fact in story:
        now += pause
        said += live.advance(now - pause / 2)
        if fact is not None:
            nodes[number].tell(now, fact)
            continue
        record = Record(SOURCE, nodes[number].digest(now, 1), host=f"node-{number}", at=now)
        journal.append(json.dumps(record.to_json()))
        said += live.feed(record)
    again, changes = Engine(PARSERS, make_job_detectors(), PRECEDENCE), list[Change]()
    for line in journal:
        changes += again.feed(Record.from_json(json.loads(line)))
    changes += again.advance(live.now)

    assert [change.to_json() for change in changes] == [change.to_json() for change in said]
