"""What advice leaves out once the processes are gone, and what it keeps."""

from __future__ import annotations

import pytest

from diag.detectors.hang.catalogue import catalogue
from diag.model import numbered
from diag.outputs.advice import lasting, needs_a_process


class _Words(dict[str, object]):
    def __missing__(self, name: str) -> str:
        return "rank 1"


@pytest.mark.parametrize("cause", sorted(catalogue()))
def test_no_advice_for_a_hang_names_a_process_once_it_is_gone(cause: str) -> None:
    process = "process 3548 (`sh upload.sh`)"
    living = numbered(catalogue()[cause].others.advice, 1).format_map(
        _Words(child=3548, pid=3548, pids="33", process=process, Process=process.capitalize(), wait="wait")
    )

    left = lasting(living)

    assert not needs_a_process(left)
    assert left == living or len(left) < len(living)
    assert left.count("(") == left.count(")") and left.count("`") % 2 == 0


@pytest.mark.parametrize("advice", [
    "Raise `ulimit -n`; look at `dmesg` (root) too.",
    "The files in /proc/PID/maps named libcudnn must all come from one folder.",
    "`py-spy dump --pid` of a worker while it waits tells where it sits (a lock; a file).",
    "Kill the old job first. Then start again with --resume.",
])  # fmt: skip
def test_general_advice_is_kept_to_the_letter(advice: str) -> None:
    assert lasting(advice) == advice


def test_advice_that_is_all_about_a_living_process_is_left_out() -> None:
    assert lasting("See `cat /proc/81/stack`, or `py-spy dump --pid 81`.") == ""
