"""What `--on` may ask for."""

from __future__ import annotations

import pytest

from diag.agent.act.asked import refuse
from diag.launch.acting import Acting
from diag.launch.actions import Rule, read_rules
from diag.text.errors import DiagError


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("hang=notify", "notify", None), ("hang=end", "end", None), ("hang=end:0", "end", 0), ("hang=end:75", "end", 75),
        ("hang=restart", "restart", 1), ("hang/peer_lost=restart:5", "restart", 5), ("hang=run:true", "run", None),
    ],
)  # fmt: skip
def test_actions_of_the_closed_list_are_taken(text: str, kind: str, number: int | None) -> None:
    (rule,) = read_rules([text])
    refuse([rule])

    assert (rule.kind, rule.number) == (kind, number)
    assert Rule.read(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hang", "it is not CLASS=ACTION"),
        ("=end", "it is not CLASS=ACTION"),
        ("hang=reboot", "'reboot' is no action"),
        ("hang=notify:x", "is no action"),
        ("hang=end:", "'' is no number from 0 to 255"),
        ("hang=end:256", "'256' is no number"),
        ("hang=restart:0", "'0' is no number from 1 to 100"),
        ("hang=restart:-1", "is no number"),
        ("hang=run:", "run: names no command"),
        ("hang=run:'x", "no closing quotation"),
        ("hang=run:/no/such/program", "not found, or not executable"),
        ("held-up=end", "a job that is held up may go on by itself"),
        ("held-up/data_loading=restart:1", "a job that is held up may go on by itself"),
        ("loss-nan=end", "nothing is done about loss-nan"),
        ("hang/unknown=end", "nothing is done about hang (unknown)"),
        ("hang/teardown=restart:1", "restart is not done for hang (teardown)"),
    ],
)
def test_anything_else_is_refused_with_what_to_write_instead(text: str, why: str) -> None:
    with pytest.raises(DiagError) as refused:
        refuse(read_rules([text]))

    assert f"--on {text} cannot be used: " in str(refused.value) and why in str(refused.value)
    assert refused.value.exit_code == 2 and refused.value.hint


ORDER = {
    "rule": "hang=restart:1",
    "grace": 1.0,
    "code": None,
    "again": {"words": ["x"], "flags": []},
    "past": {},
}


def acting(*rules: str) -> Acting:
    found = Acting(frozenset(rules), 0, subreaper=False)
    return found


def test_the_carrier_takes_an_order_only_by_a_rule_of_its_command_line() -> None:
    carrier = acting("hang=end:75")
    carrier.take(ORDER)
    assert carrier.asked is None

    carrier = acting("hang=restart:1")
    carrier.take(ORDER)
    assert carrier.asked is not None


def test_only_the_first_order_of_an_attempt_counts() -> None:
    carrier = acting("hang=restart:1", "hang=end:3")
    carrier.take(ORDER)
    carrier.take({**ORDER, "rule": "hang=end:3", "code": 3})

    assert carrier.asked is not None and carrier.asked.rule == "hang=restart:1"


def test_without_a_rule_that_ends_the_job_diag_is_no_subreaper() -> None:
    assert Acting.wanted({}, 0) is None
    assert Acting.wanted({"act": {"on": ["hang=notify", "hang=run:true"]}}, 0) is None
