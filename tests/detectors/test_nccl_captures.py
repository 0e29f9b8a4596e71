"""Logs of real NCCL, thirteen versions: each case leads to the verdict that its manifest names, and to no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("folder", "expected"), cases())
def test_log_leads_to_its_verdict(folder: Path, expected: set[tuple[str, str]]) -> None:
    engine, _, _ = replay([folder])

    found = {(finding.id, finding.cause) for finding in [*engine.active(), *engine.resolved()]}
    if ("rank-died", "") in expected:
        assert found <= KILLED
    else:
        assert {name for name, _ in found} == {name for name, _ in expected}
        assert {one for one in expected if one[1]} <= found
