"""Whether diag may act: every gate alone, and over states made at random."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from diag.agent.act import gates
from diag.agent.act.gates import GATES, Case, Standing, decide, matches
from diag.detectors.retry import acts, table
from diag.launch.actions import Rule
from diag.model import Confidence, Severity
from tests.act.facts import case, hang, past

END = Rule.read("hang=end:75")


def closed(**more: Any) -> list[str]:
    return [name for name, _ in decide(case(**more)).closed]


def test_it_acts_where_all_gates_are_open() -> None:
    decision = decide(case())

    assert decision.acts and decision.text == "acts: it has stood for 5 min"


@pytest.mark.parametrize(
    ("more", "gate", "why"),
    [
        ({"finding": hang("unknown")}, "class", "hang (unknown) is none of the classes for which it may"),
        ({"finding": hang("checkpoint_io")}, "class", "none of the classes"),
        ({"finding": hang("compile_wait")}, "class", "none of the classes"),
        ({"finding": hang("stopped")}, "class", "none of the classes"),
        ({"finding": hang(id="held-up", severity=Severity.WARNING)}, "class", "held-up (data_loading) is none"),
        ({"finding": hang("teardown")}, "class", "restart is not done for hang (teardown)"),
        ({"finding": hang(confidence=Confidence.MEDIUM)}, "confidence", "medium, not high"),
        ({"finding": hang(severity=Severity.WARNING)}, "confidence", "not critical"),
        ({"finding": hang("gpu_side", ())}, "named", "no rank is named"),
        ({"stood_since": None}, "stands", "does not stand now"),
        ({"stood_since": 1000.1}, "stands", "it has stood for 5 min, of 5 min"),
        ({"phase": "ckpt_save"}, "quiet", "the job saves"),
        ({"phase": "eval"}, "quiet", "the job evaluates"),
        ({"phase": "compile"}, "quiet", "the job compiles"),
        ({"saving": True}, "quiet", "a save is under way"),
        ({"runs": False}, "runs", "ended, or was asked to"),
        ({"earlier": (past(), past(), past())}, "count", "started again 3 of 3 times"),
        ({"done": frozenset({case().rule})}, "count", "was done in this attempt"),
        ({"step": 7}, "again", "attempt 1 was ended for the same of rank 3 at step 7"),
        ({"step": 5}, "again", "no step was made since"),
        ({"step": None}, "again", "no step was made since"),
        ({"step": 7, "finding": hang(ranks=(3, 4))}, "again", "the same of rank 3"),
        ({"finding": hang(retryable="no")}, "retryable", "it would come again"),
        ({"finding": hang(retryable="elsewhere")}, "retryable", "another one is needed"),
        ({"evidence": ""}, "evidence", "its evidence is not on disk"),
        ({"fence": "other nodes"}, "alone", "other nodes"),
    ],
)  # fmt: skip
def test_each_gate_by_itself_keeps_diag_from_acting(more: dict[str, Any], gate: str, why: str) -> None:
    decision = decide(case(**more))

    assert not decision.acts and gate in [name for name, _ in decision.closed]
    assert decision.text.startswith("does not act: ") and why in decision.text


def test_another_culprit_class_or_a_later_step_is_not_the_same() -> None:
    assert not closed(step=8)
    assert not closed(step=7, finding=hang(ranks=(4,)))
    assert not closed(step=7, finding=hang("peer_not_joined"))


def test_an_end_asks_neither_for_retries_nor_for_another_step() -> None:
    """It goes round in no circle, and where the node is to blame it is what helps."""
    assert not closed(rule=END, step=7, finding=hang(retryable="elsewhere"))
    assert not closed(rule=END, finding=hang("teardown", ()))


def test_telling_needs_no_lease() -> None:
    assert not closed(rule=Rule.read("hang=notify"), fence="other nodes")


def test_a_gate_that_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case: Case) -> str:
        raise KeyError("phase")

    monkeypatch.setattr(gates, "GATES", (("quiet", broken),))

    assert decide(case()).closed == (("quiet", "quiet cannot be told (KeyError)"),)


def test_a_rule_is_about_its_finding_and_class() -> None:
    assert matches(Rule.read("hang=end"), hang()) and matches(Rule.read("hang/data_loading=end"), hang())
    assert not matches(Rule.read("hang/lock_deadlock=end"), hang())
    assert not matches(Rule.read("hang=end"), hang(id="held-up"))


# --- how long it stood


def test_it_stands_since_it_was_told_as_it_is_now() -> None:
    standing = Standing()
    for now in (10.0, 11.0, 12.0):
        standing.look(now, [hang()])
    assert standing.since(hang()) == 10.0

    standing.look(13.0, [hang(ranks=(3, 5))])  # another culprit
    assert standing.since(hang(ranks=(3, 5))) == 13.0 and standing.since(hang()) is None

    standing.look(14.0, [])  # resolved between
    standing.look(15.0, [hang(ranks=(3, 5))])
    assert standing.since(hang(ranks=(3, 5))) == 15.0


def test_what_is_not_certain_does_not_stand() -> None:
    standing = Standing()
    standing.look(10.0, [hang(confidence=Confidence.MEDIUM)])
    standing.look(11.0, [hang()])

    assert standing.since(hang()) == 11.0


@pytest.mark.parametrize("later", [400.0, 5.0])
def test_who_was_away_begins_anew(later: float) -> None:
    """A machine that slept for an hour, a clock that was set back: what was in between is not known."""
    standing = Standing()
    standing.look(10.0, [hang()])
    standing.look(later, [hang()])

    assert standing.since(hang()) == later


# --- at random

_KLASSES = sorted(
    {*table()["hang"]["acts"], "unknown", "checkpoint_io", "compile_wait", "stopped", "rendezvous"}
)


def some_case(pick: random.Random) -> Case:
    finding = hang(
        pick.choice(_KLASSES),
        pick.choice(((), (3,), (3, 4), (7,))),
        id=pick.choice(("hang", "hang", "hang", "held-up", "rank-died")),
        severity=pick.choice((Severity.CRITICAL, Severity.CRITICAL, Severity.WARNING)),
        confidence=pick.choice((Confidence.HIGH, Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW)),
        retryable=pick.choice(("yes", "unknown", "unknown", "no", "elsewhere")),
    )
    rule = Rule.read(
        pick.choice(("hang=restart:2", "hang=end", "hang=end:75", "hang=notify", "hang=run:true"))
    )
    earlier = tuple(
        past(klass=pick.choice(_KLASSES), culprits=pick.choice(((3,), (4,))), step=pick.choice((None, 3, 7)))
        for _ in range(pick.randint(0, 3))
    )
    return case(
        rule=rule,
        finding=finding,
        stood_since=pick.choice((None, 900.0, 1000.0, 1299.0)),
        phase=pick.choice(("steady", "steady", "first_step", "training", "eval", "ckpt_save", "compile")),
        saving=pick.random() < 0.1,
        runs=pick.random() < 0.9,
        step=pick.choice((None, 3, 7, 12)),
        earlier=earlier,
        done=frozenset({rule}) if pick.random() < 0.1 else frozenset(),
        evidence=pick.choice(("/x.tar.gz", "/x.tar.gz", "")),
        fence=pick.choice(("", "", "other nodes")),
    )  # fmt: skip


def test_over_thousands_of_states_nothing_is_done_but_what_the_rules_allow() -> None:
    """The rules once more, in other words than the gates have."""
    acted = 0
    for seed in range(5000):
        one = some_case(random.Random(seed))
        decision = decide(one)
        if not decision.acts:
            assert all(why for _, why in decision.closed)
            continue
        acted += 1
        found = one.finding
        assert found.id == "hang" and found.confidence is Confidence.HIGH
        assert found.severity is Severity.CRITICAL
        assert found.klass not in ("unknown", "checkpoint_io", "compile_wait", "stopped", "rendezvous")
        assert one.stood_since is not None and one.now - one.stood_since >= one.after
        assert one.runs and not one.saving and one.phase in ("steady", "first_step", "training")
        assert one.evidence and one.rule not in one.done
        if one.rule.ends_the_job:
            assert not one.fence and one.rule.kind in acts("hang", found.klass)
        if one.rule.kind == "restart":
            assert len(one.earlier) < 2 and found.retryable in ("yes", "unknown")
            same = [
                before
                for before in one.earlier
                if before.klass == found.klass and set(before.culprits) & set(found.ranks)
            ]
            assert all(
                one.step is not None and (before.step is None or one.step > before.step) for before in same
            )
    assert acted > 50


def test_closing_a_gate_more_never_lets_it_act() -> None:
    """What is worse known, or more is wrong with, is never acted on where it was not before."""
    worse: tuple[dict[str, Any], ...] = (
        {"evidence": ""}, {"fence": "x"}, {"runs": False}, {"saving": True}, {"stood_since": None}, {"phase": "eval"},
    )  # fmt: skip
    for seed in range(500):
        one = some_case(random.Random(seed))
        for change in worse:
            before, after = decide(one), decide(replace(one, **change))
            telling = change == {"fence": "x"} and not one.rule.ends_the_job
            assert telling or not after.acts
            assert {name for name, _ in before.closed} <= {name for name, _ in after.closed}


def test_every_gate_is_asked() -> None:
    assert len({name for name, _ in GATES}) == len(GATES) == 11
