"""Jobs on two nodes, recorded live with real NCCL: each node's journal gives what is wrong with the network,
and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records

RUNS = sorted(
    path.parent for path in (Path(__file__).parents[1] / "captures" / "h200-net").glob("*/expected.json")
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_nodes_journal_leads_to_the_networks_findings(run: Path) -> None:
    expected = json.loads((run / "expected.json").read_text())["findings"]

    engine, changes = replay_records(JournalReader(segments(run)))

    found = [
        [finding.id, finding.cause, list(finding.ranks)]
        for finding in engine.active()
        if finding.severity.counts
    ]
    assert sorted(found) == sorted(expected)
    assert engine.job.world_size == 2
    if run.name.startswith("ib-healthy"):
        assert changes == []
        assert {
            net
            for process in engine.job.nccl_processes.by_pid.values()
            for net in process.nets_between_nodes()
        } == {"IB"}
