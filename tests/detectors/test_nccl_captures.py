"""Logs of real NCCL, thirteen versions: each case leads to the verdict that its manifest names, and to no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.model import Finding
from diag.replay import replay

CAPTURES = Path(__file__).parents[1] / "captures" / "nccl"


# A killed rank is known to whoever watches the processes. Its peers' logs tell a lost connection, which is no verdict of its
# own, and what was true before.
KILLED = {("ib-fallback", "no_device"), ("ib-error", "retry_exceeded")}


def cases() -> Iterator[pytest.param]:  # type: ignore[valid-type]
    for manifest in sorted(CAPTURES.glob("*/manifest.json")):
        for case in json.loads(manifest.read_text())["cases"]:
            folder = manifest.parent / case["case"]
            yield pytest.param(folder, {tuple(one) for one in case["expect"]}, id=f"{manifest.parent.name}-{folder.name}")


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
