"""`diag doctor` about real RDMA: what is missing is named, and nothing where nothing is."""

from __future__ import annotations

import pytest

from tests.vm.machine import Answers

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2700)]


def lines(answers: Answers, case: str, what: str = "RDMA") -> list[dict[str, str]]:
    return [line for line in answers["doctor"][case] if line["what"] == what]


@pytest.mark.parametrize("case", ["whole", "exact_hca", "good_gid"])
def test_rdma_that_works_is_called_ok(answers: Answers, case: str) -> None:
    assert [line["status"] for line in lines(answers, case)] == ["ok"]
    assert "rxe0:1 Ethernet 10 Gb/s ACTIVE, rxe1:1 Ethernet 10 Gb/s ACTIVE" in lines(answers, case)[0]["said"]


@pytest.mark.parametrize(
    ("case", "identity", "words"),
    [
        (
            "no_device_nodes",
            "ib-fallback",
            "the kernel has 2 RDMA devices, and /dev/infiniband has none of them",
        ),
        ("no_library", "ib-fallback", "libibverbs.so.1 is not in this image"),
        ("no_providers", "ib-fallback", "not its driver for these devices (rxe)"),
        ("not_permitted", "ib-fallback", "may not open uverbs0"),
        ("other_hca", "ib-fallback", "NCCL_IB_HCA=mlx5 leaves none of rxe0:1, rxe1:1"),
        ("empty_gid", "ib-fallback", "NCCL_IB_GID_INDEX=7: that slot of rxe0:1 is empty (RoCE v2: 0, 1)"),
        ("down", "ib-port", "no port is ACTIVE"),
    ],
)
def test_what_is_missing_is_named(answers: Answers, case: str, identity: str, words: str) -> None:
    problems = [line for line in lines(answers, case) if line["status"] == "problem"]

    assert {line["id"] for line in problems} == {identity} and words in problems[0]["said"]


def test_limit_of_locked_memory_holds_for_users_and_not_for_root(answers: Answers) -> None:
    (root,), (user,) = lines(answers, "whole", "locked memory"), lines(answers, "user_8_mib", "locked memory")

    assert root["status"] == "ok"
    assert (user["status"], user["id"]) == ("problem", "memlock-limit") and "8 MiB" in user["said"]
