"""What is worth a message, and how many there may be."""

from __future__ import annotations

from typing import Any

from diag.outputs.notify.plan import Pace, Worth


def change(kind: str = "opened", **changed: Any) -> dict[str, Any]:
    finding = {
        "id": "hang",
        "subject": "job",
        "class": "stopped",
        "cause": "",
        "severity": "critical",
        "ranks": [3],
    }
    extra = {"replaced": changed.pop("replaced")} if "replaced" in changed else {}
    return {"change": kind, "finding": {**finding, **changed}, **extra}


def test_critical_finding_is_told_once_and_its_end() -> None:
    worth = Worth("gpu1")

    told = [
        worth.take(one)
        for one in (change(), change("updated"), change("updated"), change("resolved"), change("resolved"))
    ]

    assert told == [True, False, False, True, False]


def test_warning_is_silent_until_it_is_critical_and_to_the_end_if_it_never_is() -> None:
    worth = Worth("gpu1")

    assert not worth.take(change(severity="warning"))
    assert not worth.take(change("resolved", severity="warning"))
    assert not worth.take(change(severity="warning"))
    assert worth.take(change("updated"))


def test_what_gets_worse_is_told_and_neither_what_gets_better_nor_its_return() -> None:
    worth = Worth("gpu1")
    worth.take(change(ranks=[3]))

    assert worth.take(change("updated", ranks=[3, 4]))
    assert not worth.take(change("updated", ranks=[4]))
    assert worth.take(change("updated", ranks=[4], **{"class": "data_loading"}))
    assert not worth.take(change("updated", ranks=[4], severity="warning", **{"class": "data_loading"}))
    assert not worth.take(change("updated", ranks=[4], **{"class": "data_loading"}))


def test_finding_that_gives_way_to_another_is_no_good_news() -> None:
    assert Worth("gpu1", replaced=True).take(change())
    for replaced in (False, True):
        worth = Worth("gpu1", replaced=replaced)
        worth.take(change())
        assert worth.take(change("resolved", replaced=True)) is replaced


def test_what_the_job_hub_of_another_host_found_is_told_there() -> None:
    worth = Worth("gpu1")

    assert not worth.take(change(told_by="gpu0"))
    assert worth.take(change(told_by="gpu1"))


def test_command_hears_of_warnings_too_and_of_no_note() -> None:
    worth = Worth("gpu1", "warning", replaced=True)

    assert worth.take(change(severity="warning"))
    assert not worth.take(change(id="slow", severity="info"))


def test_beyond_the_pace_all_is_held_and_goes_out_as_one() -> None:
    pace = Pace(per_hour=2)
    first, second, third, fourth, fifth = (change(subject=str(number)) for number in range(5))

    assert pace.due(0.0, [first, second, third]) == [[first], [second]]
    assert pace.due(1800.0, [fourth]) == []
    assert pace.due(3599.0, []) == []
    assert pace.due(3600.0, [fifth]) == [[third, fourth, fifth]]
    assert pace.due(3600.1, []) == []


def test_never_more_messages_in_an_hour_than_allowed() -> None:
    pace = Pace(per_hour=3)

    times = [
        second
        for second in range(0, 4 * 3600, 7)
        for _ in pace.due(float(second), [change(subject=str(second))])
    ]

    assert len(times) == 12
    assert all(sum(at <= other < at + 3600 for other in times) <= 3 for at in times)


def test_what_is_held_is_released_at_the_end_and_the_rest_counted() -> None:
    pace = Pace(per_hour=1)

    pace.due(0.0, [change(subject=str(number)) for number in range(302)])

    assert (len(pace.release()), pace.left_out, pace.release()) == (200, 101, [])
