"""Which changes are told, what is open then, and how the setting is read."""

from __future__ import annotations

import pytest

from diag.outputs.feeds.account import Account, newest
from diag.outputs.feeds.chosen import FEEDS, chosen
from diag.text.errors import DiagError
from tests.feeds.facts import GPU, HANG, change


def test_warning_is_told_and_information_is_not() -> None:
    account = Account("gpu-17")

    assert account.take(change(HANG, severity="warning"))
    assert not account.take(change(GPU, severity="info"))
    assert [one["id"] for one in account.open()] == ["hang"]


def test_same_again_is_told_once_and_certainty_is_news() -> None:
    account = Account("gpu-17")

    assert account.take(change(GPU, confidence="medium"))
    assert not account.take(change(GPU, "updated", confidence="medium"))
    assert account.take(change(GPU, "updated"))
    assert not account.take(change(GPU, "updated"))


def test_end_of_the_last_one_is_told_and_nothing_is_open() -> None:
    account = Account("gpu-17")
    account.take(change(HANG, at=1000.0))
    account.take(change(GPU, at=1010.0))
    assert account.since == 1000.0

    assert account.take(change(HANG, "resolved", at=1020.0))
    assert [one["id"] for one in account.open()] == ["gpu-fault"] and account.since == 1000.0
    assert account.take(change(GPU, "resolved", at=1030.0))
    assert account.open() == [] and account.since is None


def test_what_another_finding_replaced_is_no_longer_open() -> None:
    account = Account("gpu-17")
    account.take(change(HANG, id="held-up"))

    assert account.take({**change(HANG, "resolved", id="held-up"), "replaced": True})
    assert account.open() == []


def test_what_the_job_hub_of_another_host_found_it_tells_itself() -> None:
    account = Account("gpu-17")

    assert not account.take(change(HANG, told_by="gpu-16"))
    assert account.open() == []


def test_what_was_told_here_is_told_to_its_end_also_once_the_job_hub_judges_it() -> None:
    account = Account("gpu-17")
    account.take(change(GPU))

    account.take(change(GPU, "updated", told_by="gpu-16", hosts=["gpu-17"]))
    assert account.take(change(GPU, "resolved", told_by="gpu-16", hosts=["gpu-17"]))
    assert account.open() == []


def test_of_what_was_held_back_the_newest_is_told_and_nothing_of_what_came_and_went() -> None:
    changes = [change(HANG), change(GPU), change(HANG, "updated", ranks=[3, 5]), change(GPU, "resolved")]

    assert newest(changes) == [changes[2]]
    assert newest([change(GPU, "resolved")]) == [change(GPU, "resolved")]  # it was told before


def test_gravest_is_first() -> None:
    account = Account("gpu-17")
    account.take(change(HANG, severity="warning"))
    account.take(change(GPU, since=2000.0))

    assert [one["id"] for one in account.open()] == ["gpu-fault", "hang"]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("kubernets", "there is no feed kubernets"),
        ("slurm:requeue", "the feed slurm has no option requeue"),
        ("nvrx:dir=/a,file=b", "the feed nvrx has no option file=b"),
    ],
)
def test_setting_that_is_none_is_refused(setting: str, why: str) -> None:
    with pytest.raises(DiagError, match=why):
        chosen(setting)


def test_nothing_is_chosen_by_itself() -> None:
    assert chosen("") == []
    assert [one.feed for one in chosen(" ".join(one.name for one in FEEDS))] == [*FEEDS]


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("nvrx:dir=/shared", True),
        ("nvsentinel:strategy=EXECUTE_REMEDIATION", True),
        ("nvsentinel", False),
        ("kubernetes", False),
        ("slurm:exclude-file=/shared/exclude", False),
    ],
)
def test_only_the_command_line_lets_a_controller_act(setting: str, refused: bool) -> None:
    (one,) = chosen(setting)
    environment = {"SLURM_JOB_ID": "1"}

    assert ("only the command line can choose it" in one.lacking(environment, typed=False)) == refused
    assert "only the command line" not in one.lacking(environment, typed=True)
