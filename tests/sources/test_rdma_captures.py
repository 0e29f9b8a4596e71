"""What a machine with soft-RoCE showed (tests/vm/rdma, captures/sources/rdma), read and judged again without
it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.engine.replay import replay
from diag.model import Record
from diag.model.observations import LimitsSeen, RdmaAccess, RdmaPortsSeen
from diag.sources.host import proc
from diag.sources.network import rdma_access
from diag.sources.network.infiniband import InfinibandReader
from diag.sources.network.infiniband import parse as parse_ports
from tests.vm.rdma.scenarios import SCENARIOS, Scenario


@pytest.fixture
def rdma(captures: Path) -> Path:
    return captures / "sources" / "rdma"


def read_tree(text: str, root: Path) -> RdmaPortsSeen:
    for line in text.splitlines():
        path, separator, value = line.partition(" = ")
        if separator:  # else "PATH ! ERROR": an empty slot of the GID table, of which nothing is asked
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(value + "\n")
    (seen,) = parse_ports(Record("infiniband", InfinibandReader(root).sample(), at=1.0))
    assert isinstance(seen, RdmaPortsSeen)
    return seen


@pytest.mark.parametrize(
    ("name", "state", "physical", "downed"),
    [("sysfs_up.txt", 4, "LinkUp", 0), ("sysfs_down.txt", 1, "Disabled", 1)],
)
def test_port_of_soft_roce(  # noqa: PLR0917
    rdma: Path, tmp_path: Path, name: str, state: int, physical: str, downed: int
) -> None:
    (port,) = read_tree((rdma / name).read_text(), tmp_path).ports

    assert (port.device, port.state, port.physical_state, dict(port.counters)["link_downed"]) == (
        "rxe0",
        state,
        physical,
        downed,
    )
    assert [(gid.index, gid.kind, gid.interface) for gid in port.gids] == [
        (0, "RoCE v2", "d0"),
        (1, "RoCE v2", "d0"),
    ]


@pytest.mark.parametrize(
    ("who", "expected"),
    [  # device nodes seen, held open, libibverbs, the driver rxe, CAP_IPC_LOCK, limit of locked memory
        ("root_8_mib", (2, 1, True, True, True, 8 << 20)),
        ("user_8_mib", (2, 1, True, True, False, 8 << 20)),
        ("user_unlimited", (2, 1, True, True, False, None)),
        ("user_0", (2, 1, True, True, False, 0)),
        ("namespace_root_8_mib", (2, 1, True, True, False, 8 << 20)),
        ("not_permitted", (2, 0, True, True, False, None)),
        ("whole", (2, 1, True, True, True, 8 << 20)),
        ("no_device_nodes", (0, 0, True, True, True, 8 << 20)),
        ("no_library", (2, 0, False, True, True, 8 << 20)),
        ("no_providers", (2, 0, True, False, True, 8 << 20)),
        ("no_mlx4", (2, 1, True, True, True, 8 << 20)),
    ],
)
def test_processes_that_have_more_or_less_of_rdma(rdma: Path, who: str, expected: tuple[object, ...]) -> None:
    shown = json.loads((rdma / "processes.json").read_text())[who]

    (access,) = rdma_access.parse(Record("rdma_access", shown["payload"], rank=0, at=1.0))
    (limits,) = proc.parse(Record("proc", shown["limits"], rank=0, at=1.0))

    assert isinstance(access, RdmaAccess)
    assert isinstance(limits, LimitsSeen)
    assert (
        len(access.device_nodes or ()), len(access.open_nodes or ()), access.verbs_library,
        "rxe" in (access.providers or ()), access.ipc_lock, limits.get("Max locked memory"),
    ) == expected  # fmt: skip
    assert limits.ipc_lock is access.ipc_lock
    assert limits.rdma_devices is bool(access.device_nodes)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_replayed_job_has_the_findings_that_it_must_have(rdma: Path, scenario: Scenario) -> None:
    _, changes, notes = replay([rdma / f"journal-{scenario.name}.jsonl.gz"])

    found = {change.finding.id for change in changes if change.finding.severity.counts}

    assert notes == []
    assert found == {wanted.id for wanted in scenario.wanted}
