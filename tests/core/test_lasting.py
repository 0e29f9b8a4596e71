"""What advice says while the processes live that it is about, and what is left of it once they are gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from diag.detectors.findings import table
from diag.detectors.hang.catalogue import catalogue
from diag.detectors.rules.load import Loaded, packaged_folder, read_rules
from diag.model import Confidence, Finding, NotChecked, Severity, numbered, what_holds
from diag.sources.payload import failures_of

# Commands that look at a living process or change it: a pid that is given again belongs to a stranger by then.
NEEDS_A_PROCESS = re.compile(
    r"/proc/(?:PID|\{\w+\})/(?:fd|stack)|\bkill -\w+ |--pid (?:PID|\{)|-p \{|\(pid \{|\bdiag (?:dump|watch|top)\b|\bstill alive\b"
)


def texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from texts(each, f"{name}/{key}")
    elif isinstance(value, str):
        yield name, value


def advices() -> Iterator[tuple[str, str]]:
    for cause, entry in catalogue().items():
        yield cause, entry.others.advice
        yield f"{cause}/alone", entry.alone.advice
    for finding, row in table().items():
        yield from (
            (name, text) for name, text in texts(row, finding) if "<live>" in text or name.endswith("/advice")
        )
    for one in read_rules(packaged_folder().glob("*/*.yaml"), own=True):
        assert isinstance(one, Loaded)
        yield one.rule.id, one.rule.advice
        yield f"{one.rule.id}/zh", one.rule.zh.advice
    for source in ("faulthandler", "nccl_ras"):
        yield from ((f"{source}/{word}", remedy) for word, (_, remedy) in failures_of(source).items())


ADVICES = dict(advices())


@pytest.mark.parametrize("name", ADVICES)
def test_no_advice_names_a_process_once_it_is_gone(name: str) -> None:
    assert not NEEDS_A_PROCESS.search(what_holds(ADVICES[name], over=True))


@pytest.mark.parametrize("name", sorted(name for name, text in ADVICES.items() if "<live>" in text))
@pytest.mark.parametrize("count", [1, 2])
def test_advice_is_whole_while_they_live_and_after(name: str, count: int) -> None:
    living, left = (what_holds(numbered(ADVICES[name], count), over=over) for over in (False, True))

    assert len(left) < len(living)
    for said in (living, left):
        assert "live>" not in said and "  " not in said
        assert said.count("(") == said.count(")") and said.count("`") % 2 == 0
        assert said[:1] == said[:1].upper() or living[:1].islower()
        assert not said or said[-1] == living[-1] or said[-1] in ".?"


def test_report_of_what_is_over_has_what_still_holds() -> None:
    advice = "<live>Rank 1 is stopped: `kill -CONT 81` lets it go on; </live>find who sent SIGSTOP<live> (look at 81)</live>."
    finding = Finding("hang", "job", Severity.CRITICAL, Confidence.HIGH, "rank 1 waits", advice, 0.0)
    unread = NotChecked("stacks", "it is stopped", "<live>let pid 81 go on</live>")

    assert finding.to_json()["advice"].startswith(
        "Rank 1 is stopped: `kill -CONT 81` lets it go on; find who"
    )
    assert finding.to_json(over=True)["advice"] == "Find who sent SIGSTOP."
    assert unread.to_json(over=True)["remedy"] == ""


def test_general_advice_is_kept_to_the_letter() -> None:
    advice = "`py-spy dump --pid` of a worker while it waits tells where it sits (a lock; a file). Raise `ulimit -n`."

    assert what_holds(advice, over=True) == what_holds(advice, over=False) == advice
