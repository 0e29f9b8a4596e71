"""What goes over the wire comes out as it went in, with its times laid on another clock; what is no digest
does no harm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diag.engine.importers.log_reader import log_records
from diag.engine.journal import JournalReader, segments
from diag.model import Confidence, Evidence, NotChecked, Record, Severity
from diag.model.observations import (
    FlightRecorder,
    FramesSeen,
    JobVerdict,
    NodeDigest,
    NodeProbed,
    Observation,
    RankDigest,
    RankExited,
    RankFound,
    StackSampleSummary,
    ThreadSeen,
    Unparsed,
    VerdictLost,
)
from diag.sources import digest as digest_source
from diag.sources.digest import FORWARDED, SCHEMA, SOURCE, VERDICT_SOURCE
from diag.sources.parsers import PARSERS
from tests.cluster_unit.facts import finding, node, rank
from tests.cluster_unit.nodes import NodeEngine

CAPTURES = Path(__file__).parents[1] / "captures"
NOW, LATER = 2000.0, 7000.5  # the sender's clock and the taker's

times = st.integers(0, 2000).map(float)
maybe_times = st.one_of(st.none(), times)
words = st.text(max_size=8)
ratios = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0]))
threads = st.lists(st.builds(ThreadSeen, words, st.integers(0, 1 << 40), words, st.sampled_from([None, True, False]),
                             st.sampled_from([None, True])), max_size=3).map(tuple)  # fmt: skip
evidence = st.builds(Evidence, words, words, times, st.one_of(st.none(), st.integers(0, 9)))
findings = st.lists(
    st.builds(finding, words, subject=words, since=times, severity=st.sampled_from(Severity), cause=words, klass=words,
              confidence=st.sampled_from(Confidence), ranks=st.lists(st.integers(0, 99), max_size=3).map(tuple), rule=words,
              evidence=st.lists(evidence, max_size=2).map(tuple), final=st.booleans(),
              hosts=st.lists(words, max_size=2).map(tuple)),
    max_size=3,
).map(tuple)  # fmt: skip
node_digests = st.builds(
    node, st.one_of(st.none(), st.integers(0, 9)), run_id=words, host=words, url=words, phase=words, phase_line=words,
    phase_at=maybe_times, iteration=st.one_of(st.none(), st.integers(0, 1 << 40)), iteration_at=maybe_times,
    log_moved_at=maybe_times, save_moved_at=maybe_times, started_at=maybe_times,
    returncode=st.one_of(st.none(), st.integers(-20, 255)),
    interrupted=st.booleans(), findings=findings, deaths=findings, hangs=findings, leaving=st.booleans(),
    not_checked=st.lists(st.builds(NotChecked, words, words, words), max_size=2).map(tuple),
    host_names=st.lists(words, max_size=3).map(tuple),
)  # fmt: skip
exits = st.builds(RankExited, st.just(3), st.just(1003), st.one_of(st.none(), st.integers(0, 255)),
                  st.one_of(st.none(), st.integers(1, 64)), words, ended=maybe_times)  # fmt: skip
rank_digests = st.builds(
    rank, st.just(3), times, state=st.sampled_from("RSDT"), tree_at=times, cpu_ratio=ratios, main_cpu_ratio=ratios,
    stopped_at=maybe_times, stack_at=times, stack_since=times, stack_samples=st.integers(0, 99), standing=words, cause=words,
    child=st.one_of(st.none(), st.integers(1, 1 << 22)), gpu=words, threads=threads, exited=st.one_of(st.none(), exits),
    children=st.lists(st.tuples(st.integers(1, 1 << 22), words, words, threads), max_size=2).map(tuple),
    looks=st.lists(st.builds(StackSampleSummary, times, st.booleans(), words, words, st.booleans()), max_size=3).map(tuple),
    tail=st.lists(words, max_size=2).map(tuple),
)  # fmt: skip


def document(a_node: NodeDigest, *ranks: RankDigest, **parts: Any) -> dict[str, Any]:
    made = {
        "schema": SCHEMA, "node": digest_source.wire(a_node, NOW), "ranks": [digest_source.wire(one, NOW) for one in ranks],
        "frames": {}, "commands": {}, **parts,
    }  # fmt: skip
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def parsed(payload: Any, source: str = SOURCE) -> list[Observation]:
    return list(PARSERS[source](Record(source, payload, at=LATER)))


def shift(by: float) -> Callable[[float | None], Any]:
    return lambda at: None if at is None else at + by


@settings(max_examples=100, deadline=None)
@given(sent=node_digests)
def test_nodes_state_comes_out_as_it_went_in_on_the_takers_clock(sent: NodeDigest) -> None:
    came = next(fact for fact in parsed(document(sent)) if isinstance(fact, NodeDigest))

    moved = shift(LATER - NOW)

    def later(those: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            replace(
                one,
                since=moved(one.since),
                evidence=tuple(replace(item, at=moved(item.at)) for item in one.evidence),
            )
            for one in those
        )

    names = ("phase_at", "iteration_at", "log_moved_at", "save_moved_at", "started_at")
    assert came == replace(
        sent,
        findings=later(sent.findings),
        deaths=later(sent.deaths),
        hangs=later(sent.hangs),
        **{name: moved(getattr(sent, name)) for name in names},
    )


@settings(max_examples=100, deadline=None)
@given(sent=rank_digests)
def test_ranks_state_comes_out_as_it_went_in_on_the_takers_clock(sent: RankDigest) -> None:
    facts = parsed(document(node(0), sent, commands={"3": "python train.py"}))

    moved = shift(LATER - NOW)
    came = next(fact for fact in facts if isinstance(fact, RankDigest))
    found = next(fact for fact in facts if isinstance(fact, RankFound))
    exited = None if sent.exited is None else replace(sent.exited, ended=moved(sent.exited.ended))
    assert came == replace(
        sent, at=moved(sent.at), tree_at=moved(sent.tree_at), stopped_at=moved(sent.stopped_at), stack_at=moved(sent.stack_at),
        stack_since=moved(sent.stack_since), moved=tuple((channel, moved(at)) for channel, at in sent.moved), exited=exited,
        looks=tuple(replace(look, at=moved(look.at)) for look in sent.looks),
    )  # fmt: skip
    assert (found.placement, found.command) == (sent.placement, "python train.py")
    assert [fact for fact in facts if isinstance(fact, RankExited)] == ([exited] if exited else [])


@settings(max_examples=50, deadline=None)
@given(sent=findings)
def test_verdict_comes_home_as_it_was_said(sent: tuple[Any, ...]) -> None:
    fact = JobVerdict(None, "gpu-0", 3, 4, sent, (NotChecked("node 2", "silent"),))
    payload = json.loads(json.dumps(digest_source.verdict(fact, NOW)))

    (came,) = parsed(payload, VERDICT_SOURCE)

    assert isinstance(came, JobVerdict)
    assert [one.since for one in came.findings] == [one.since + LATER - NOW for one in sent]
    assert [(one.key, one.ranks, one.severity, one.final) for one in came.findings] == [
        (one.key, tuple(sorted(set(one.ranks))), one.severity, one.final) for one in sent
    ]  # fmt: skip
    assert came.not_checked == fact.not_checked
    assert parsed(digest_source.lost("gone"), VERDICT_SOURCE) == [VerdictLost(None, "gone")]


def captured() -> Iterator[Observation]:
    """All facts of real runs that go up as they are: journals of two hosts, of H200 runs, logs of NCCL 2.18
    to 2.31."""
    for journal in sorted(CAPTURES.glob("h200-*/*/journal-*")):
        for record in JournalReader(segments(journal.parent)):
            yield from PARSERS[record.source](record)
    for log in sorted(CAPTURES.glob("nccl/*/*/*.log"))[::3]:
        with log.open("rb") as file:
            for record in log_records(file, log.name, 1000.0, 0):
                yield from PARSERS[record.source](record)


def test_every_forwarded_fact_of_real_runs_comes_out_as_it_went_in() -> None:
    facts = [fact for fact in captured() if isinstance(fact, FORWARDED)]
    told = json.loads(json.dumps(digest_source.wire_all(facts, NOW)))

    came = [fact for fact in parsed(document(node(0), **told)) if isinstance(fact, (*FORWARDED, Unparsed))]

    kinds = {type(fact).__name__ for fact in facts}
    assert kinds >= {
        "FlightRecorder",
        "RasReading",
        "NcclCommunicator",
        "NcclNetChosen",
        "NcclIbDevices",
        "NcclSockets",
    }
    assert came == facts
    assert sum(isinstance(fact, FlightRecorder) for fact in facts) > 5


def test_frames_are_sent_once_and_stacks_point_at_them() -> None:
    one = NodeEngine(0)
    for record in JournalReader(segments(CAPTURES / "h200-live" / "loop-data-hang")):
        one.engine.feed(record)

    first, second = one.digest(one.engine.now, 1), one.digest(one.engine.now + 5.0, 1)
    one.maker.forget()
    again = one.digest(one.engine.now + 10.0, 1)

    keys = {thread["key"] for row in first["ranks"] for thread in row["threads"]}
    assert keys and keys <= {*first["frames"]}
    assert second["frames"] == {} and "facts" not in second
    assert again["frames"] == first["frames"] and again["facts"] == first["facts"]
    assert any(isinstance(fact, FramesSeen) and fact.frames for fact in parsed(first))


# --- what is no digest
# -------------------------------------------------------------------------------------------

junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
WHOLE = document(node(0, findings=(finding(),)), rank(3, NOW, threads=(ThreadSeen("k", 1, "MainThread"),)),
                 frames={"k": [["main", "train.py", 3]]}, facts=[["NcclSockets", {}]])  # fmt: skip


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*here, key)
        yield from paths(part, (*here, key))


@settings(max_examples=300, deadline=None)
@given(where=st.sampled_from([*paths(WHOLE)]), what=junk)
@example(where=("node", "log_moved_at"), what=float("nan"))
@example(where=("node", "findings", 0, "since"), what=1e300)
@example(where=("ranks", 0, "placement", "rank"), what=-5)
@example(where=("frames", "k"), what={"a": 1})
@example(where=("commands",), what=7)
@example(where=("frames",), what=[])
def test_digest_with_anything_in_any_place_raises_nothing_and_times_stay_times(
    where: tuple[Any, ...], what: Any
) -> None:
    payload = json.loads(json.dumps(WHOLE))
    place = payload
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = what

    job = NodeEngine(0)
    job.engine.feed(Record(SOURCE, payload, at=LATER))
    job.engine.advance(LATER + 5.0)

    for fact in parsed(payload):
        if isinstance(fact, NodeDigest):
            assert all(0.0 <= one.since <= LATER + 1e8 for one in fact.findings)


@settings(max_examples=100, deadline=None)
@given(payload=junk)
def test_what_is_no_digest_or_verdict_is_told_as_not_understood(payload: Any) -> None:
    assert [type(fact) for fact in parsed(payload)] == [Unparsed]
    assert [type(fact) for fact in parsed(payload, VERDICT_SOURCE)] == [Unparsed]


def test_forwarded_fact_of_an_unknown_kind_does_not_hide_the_others() -> None:
    facts = parsed(document(node(0), facts=[["FromTheFuture", {}], 5, ["NcclSockets"]]))

    assert [type(fact).__name__ for fact in facts if isinstance(fact, Unparsed)] == ["Unparsed"] * 3
    assert any(isinstance(fact, NodeDigest) for fact in facts)


def test_probe_is_a_fact_of_its_own() -> None:
    assert parsed(digest_source.probed("run-1", "gpu-1", "timeout", 3.0)) == [
        NodeProbed(None, "run-1", "gpu-1", "timeout", 3.0)
    ]


@pytest.mark.parametrize("place", ["facts", "ranks", "node", "frames"])
def test_digest_of_great_depth_raises_nothing(place: str) -> None:
    payload: Any = "x"
    for _ in range(5_000):
        payload = [payload]

    assert any(isinstance(fact, Unparsed) for fact in parsed({**WHOLE, place: payload}))
