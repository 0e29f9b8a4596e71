"""Logs of real NCCL, thirteen versions: each case leads to the verdict that its manifest names, and to no
other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.engine.replay import replay
from diag.model import Finding

CAPTURES = Path(__file__).parents[1] / "captures" / "nccl"


# A killed rank is known to whoever watches the processes. Its peers' logs tell a lost connection, which is no
# verdict of its own, and what was true before.
KILLED = {("ib-fallback", "no_device"), ("ib-error", "retry_exceeded")}


def cases() -> Iterator[pytest.param]:  # type: ignore[valid-type]
    for manifest in sorted(CAPTURES.glob("*/manifest.json")):
        for case in json.loads(manifest.read_text())["cases"]:
            folder = manifest.parent / case["case"]
            yield pytest.param(
                folder, {tuple(one) for one in case["expect"]}, id=f"{manifest.parent.name}-{folder.name}"
            )


def test_every_recorded_folder_is_judged() -> None:
    folders = {path for path in CAPTURES.glob("*/*") if path.is_dir()}

    assert folders == {parameters.values[0] for parameters in cases()}
    assert len(folders) > 500


@pytest.mark.parametrize(("folder", "expected"), [*cases()])
def test_log_leads_to_its_verdict(folder: Path, expected: set[tuple[str, str]]) -> None:
    engine, _, _ = replay([folder])

    found = {(finding.id, finding.cause) for finding in [*engine.active(), *engine.resolved()]}
    if ("rank-died", "") in expected:
        assert found <= KILLED
    else:
        assert {name for name, _ in found} == {name for name, _ in expected}
        assert {one for one in expected if one[1]} <= found


@pytest.mark.parametrize("version", ["2.21.5", "2.28.9", "2.30.7"])
def test_one_nodes_log_is_enough_to_tell_mixed_networks(version: str) -> None:
    folder = CAPTURES / version / "mixed-ib-disable"

    on_infiniband = verdict(folder / "rank0.log")["transport-mismatch"]
    on_sockets = verdict(folder / "rank1.log")["transport-mismatch"]

    assert (on_infiniband.ranks, on_infiniband.waiting_ranks) == ((), (0,))
    assert "ranks of another node: Socket" in on_infiniband.summary
    assert (on_sockets.ranks, on_sockets.cause) == ((1,), "ib_disabled")


def verdict(path: Path) -> dict[str, Finding]:
    engine, _, _ = replay([path])
    return {finding.id: finding for finding in engine.active()}


def test_groups_on_one_machine_are_no_nodes_though_nccl_counts_each_rank_as_one(tmp_path: Path) -> None:
    # P2P and shared memory switched off, as in one-node-no-p2p-shm, and two groups of two without a
    # communicator of the world
    lines = []
    for pid in range(100, 104):
        group, rank = divmod(pid - 100, 2)
        head = f"node-0:{pid}:{pid} [0] NCCL INFO"
        lines += [
            f"{head} Bootstrap: Using eth0:192.0.2.10<0>",
            f"{head} NET/Socket : Using [0]eth0:192.0.2.10<0>",
            f"{head} Using network Socket",
            f"{head} ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId {pid}000 commId 0xa{group} - Init "
            "START",
            f"{head} comm 0x1 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
            f"{head} Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via NET/Socket/0",
        ]
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(lines) + "\n")

    assert verdict(path) == {}
