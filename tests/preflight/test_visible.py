"""Which devices a variable leaves visible, as CUDA and PyTorch read it."""

from __future__ import annotations

import pytest

from diag.preflight.visible import visible_gpus, visible_npus

TWO = ("GPU-1111aaaa-0000", "GPU-2222bbbb-0000")


def shown(value: str, gpus: tuple[str, ...] | None = TWO) -> tuple[int | None, str]:
    seen = visible_gpus({"CUDA_VISIBLE_DEVICES": value}, gpus)
    return seen.count, seen.wrong


@pytest.mark.parametrize(
    "value", ["0,1", " 1 , 0", "GPU-1111,GPU-2222", "GPU-2222bbbb-0000,GPU-1111aaaa-0000"]
)
def test_values_that_are_well_written_show_all_that_they_name(value: str) -> None:
    assert shown(value) == (2, "")


def test_without_the_variable_all_are_shown() -> None:
    assert visible_gpus({}, TWO).count == 2 and visible_gpus({}, None).count is None


def test_numbers_are_believed_where_nobody_saw_the_gpus() -> None:
    assert shown("4,5,6,7", None) == (4, "")


@pytest.mark.parametrize("value", ["", "-1"])
def test_hiding_all_on_purpose_is_not_called_wrong(value: str) -> None:
    assert shown(value) == (0, "")


@pytest.mark.parametrize(
    ("value", "count", "words"),
    [
        ("0,2,1", 1, "CUDA stops at '2', which is not a GPU: there are 2 here"),
        ("0,0", 0, "0 is listed twice"),
        ("GPU-1111,GPU-1111", 0, "is listed twice"),
        ("0 1", 1, "CUDA reads '0 1' as 0"),
        ("gpu0", 0, "CUDA stops at 'gpu0'"),
        ("all", 0, "CUDA stops at 'all'"),
        ("GPU-1111,1", 1, "CUDA stops at '1', which does not begin with GPU-"),
        ("GPU-9999", 0, "which is not a GPU here"),
        ("GPU-", 0, "which is not a GPU here"),
        ("1gpu", 1, "CUDA reads '1gpu' as 1"),
        ("0,,1", 1, "CUDA stops at ''"),
    ],
)
def test_values_that_show_fewer_than_they_seem_to_are_told(value: str, count: int, words: str) -> None:
    assert shown(value)[0] == count and words in shown(value)[1]


def test_instances_of_mig_are_counted_and_marked() -> None:
    seen = visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-aa,MIG-bb"}, TWO)

    assert (seen.count, seen.mig, seen.wrong) == (2, True, "")


def test_npus_are_numbers() -> None:
    assert visible_npus({"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, 8).count == 2
    assert (
        visible_npus({"ASCEND_RT_VISIBLE_DEVICES": "8"}, 8).wrong
        == "the runtime stops at '8', which is not an NPU: there are 8 here"
    )
    assert visible_npus({}, 8).count == 8
