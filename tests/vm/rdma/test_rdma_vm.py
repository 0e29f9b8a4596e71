"""What diag reads of real RDMA (soft-RoCE in a virtual machine, see machine.py) and what it finds in jobs
there."""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from diag.engine.journal import JournalReader, segments
from diag.model import Record
from diag.model.observations import Observation, RdmaAccess, RdmaPortsSeen
from diag.sources.network import infiniband, interfaces
from diag.sources.parsers import PARSERS
from diag.state.traffic import between
from tests.vm.machine import Answers
from tests.vm.rdma.scenarios import DEVICE_NODES, LIBRARY, MIB, PROVIDERS, SCENARIOS, Scenario

pytestmark = [pytest.mark.vm, pytest.mark.timeout(2700)]


def fact(read: dict[str, Any], name: str) -> dict[str, Any]:
    """The one fact of this class that a reading gave."""
    found = [item for item in read["facts"] if item["fact"] == name]
    assert len(found) == 1, read["facts"]
    assert len(read["facts"]) == 1, read["facts"]
    return found[0]


def port(read: dict[str, Any], device: str = "rxe0") -> dict[str, Any]:
    return next(item for item in fact(read, "RdmaPortsSeen")["ports"] if item["device"] == device)


def interface(read: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in fact(read, "InterfacesSeen")["interfaces"] if item["name"] == name)


def access(seen: dict[str, Any]) -> dict[str, Any]:
    return fact(seen, "RdmaAccess")


# -- ports
# ----------------------------------------------------------------------------------------------------


def test_a_port_is_seen_active_then_down_then_active_again(answers: Answers) -> None:
    ports = answers["ports"]

    states = [
        (port(ports[when])["state"], port(ports[when])["physical_state"])
        for when in ("up", "down", "up_again")
    ]

    assert states == [(4, "LinkUp"), (1, "Disabled"), (4, "LinkUp")]
    # rdma-core's own tool says the same
    assert (ports["devinfo"].count("PORT_ACTIVE (4)"), ports["devinfo_down"].count("PORT_DOWN (1)")) == (2, 2)


def test_the_other_end_of_the_cable_sees_no_link_rather_than_a_disabled_port(answers: Answers) -> None:
    assert port(answers["ports"]["down"], "rxe1")["physical_state"] == "Polling"


def test_a_port_that_went_down_counts_it(answers: Answers) -> None:
    counted = [
        dict(port(answers["ports"][when])["counters"])["link_downed"] for when in ("up", "down", "up_again")
    ]

    assert counted == [0, 1, 1]


def test_a_device_that_goes_and_comes_is_listed_while_it_is_there(answers: Answers) -> None:
    seen = {
        when: fact(answers["ports"][when], "RdmaPortsSeen")["ports"] for when in ("one_gone", "both_again")
    }
    listed = {when: [item["device"] for item in ports] for when, ports in seen.items()}

    assert listed == {"one_gone": ["rxe0"], "both_again": ["rxe0", "rxe1"]}
    # a new device, and new counters
    assert dict(port(answers["ports"]["both_again"], "rxe1")["counters"])["link_downed"] == 0


def test_rate_link_layer_and_gids_are_those_of_the_port(answers: Answers) -> None:
    seen = port(answers["ports"]["up"], "rxe1")

    assert (seen["rate_bytes_per_second"], seen["link_layer"]) == (1.25e9, "Ethernet")
    assert [(gid["index"], gid["gid"], gid["kind"], gid["interface"]) for gid in seen["gids"]] == [
        (0, "fe80:0000:0000:0000:0000:00ff:fe00:0002", "RoCE v2", "d1"),
        (1, "0000:0000:0000:0000:0000:ffff:c000:0202", "RoCE v2", "d1"),  # 192.0.2.2
    ]


def test_interfaces_are_down_with_the_cable(answers: Answers) -> None:
    down = answers["ports"]["networks_down"]
    up = answers["traffic"]["before"]["networks"]

    names = ("d0", "d1", "lo")
    assert [interface(up, name)["up"] for name in names] == [True, True, True]
    assert [interface(down, name)["up"] for name in names] == [False, False, True]
    assert interface(up, "d0")["addresses"][0] == "192.0.2.1"


# -- processes
# ------------------------------------------------------------------------------------------------


def test_a_process_that_registers_memory_is_seen_to_hold_its_device(answers: Answers) -> None:
    seen = answers["processes"]["user_unlimited"]

    assert seen["said"]["registered"]
    assert access(seen)["device_nodes"] == ["uverbs0", "uverbs1"]
    assert access(seen)["open_nodes"] == ["uverbs0"]
    assert {"libibverbs", "librxe-rdmav34"} <= set(access(seen)["mapped"])
    assert (access(seen)["verbs_library"], "rxe" in access(seen)["providers"]) == (True, True)
    # VmPin: what RDMA registered, and not VmLck
    assert fact(seen["tree"], "ProcessTree")["pinned_bytes"] == 16 * MIB
    assert fact(seen["tree"], "ProcessTree")["locked_bytes"] == 0


@pytest.mark.parametrize(
    ("who", "registered", "error", "limit", "ipc_lock"),
    [
        ("root_8_mib", True, "", 8 * MIB, True),  # CAP_IPC_LOCK: the limit does not hold
        ("user_8_mib", False, "ENOMEM", 8 * MIB, False),
        ("user_unlimited", True, "", None, False),
        ("user_0", False, "EPERM", 0, False),
        ("namespace_root_8_mib", False, "ENOMEM", 8 * MIB, False),
    ],
)
def test_limit_of_locked_memory_and_the_right_to_ignore_it(  # noqa: PLR0917
    answers: Answers, who: str, registered: bool, error: str, limit: int | None, ipc_lock: bool
) -> None:
    seen = answers["processes"][who]

    limits = fact(seen["limits"], "LimitsSeen")

    assert (seen["said"]["opened"], seen["said"]["registered"], seen["said"]["errno"]) == (
        True,
        registered,
        error,
    )
    assert (dict(limits["soft"])["Max locked memory"], limits["rdma_devices"]) == (limit, True)
    assert access(seen)["ipc_lock"] is ipc_lock
    # a device that is open, though no memory could be registered
    assert access(seen)["open_nodes"] == ["uverbs0"]


def test_a_device_that_may_not_be_opened_is_there_and_not_held(answers: Answers) -> None:
    seen = answers["processes"]["not_permitted"]

    assert (seen["said"]["devices"], seen["said"]["opened"]) == (["rxe0", "rxe1"], False)
    assert (access(seen)["device_nodes"], access(seen)["open_nodes"]) == (["uverbs0", "uverbs1"], [])


# -- containers
# -----------------------------------------------------------------------------------------------


def test_a_container_that_lacks_nothing_is_seen_like_the_machine(answers: Answers) -> None:
    seen = access(answers["containers"]["whole"])

    assert (seen["device_nodes"], seen["open_nodes"], seen["verbs_library"]) == (
        ["uverbs0", "uverbs1"],
        ["uverbs0"],
        True,
    )


def test_without_device_nodes_libibverbs_says_nothing_and_finds_nothing(answers: Answers) -> None:
    seen = answers["containers"]["no_device_nodes"]

    assert (seen["said"]["devices"], seen["stderr"]) == ([], "")
    assert (access(seen)["device_nodes"], access(seen)["open_nodes"], access(seen)["verbs_library"]) == (
        [],
        [],
        True,
    )
    assert port(answers["ports"]["up"])["state"] == 4  # while the node has an active port
    assert fact(seen["limits"], "LimitsSeen")["rdma_devices"] is False


def test_a_container_without_libibverbs(answers: Answers) -> None:
    seen = answers["containers"]["no_library"]

    assert "libibverbs.so.1: cannot open shared object file" in seen["said"]["library"]
    assert (access(seen)["verbs_library"], access(seen)["mapped"]) == (False, [])


def test_a_container_without_drivers_of_libibverbs(answers: Answers) -> None:
    seen = answers["containers"]["no_providers"]

    assert (seen["said"]["devices"], access(seen)["providers"]) == ([], [])
    assert "libibverbs: Warning: couldn't load driver 'librxe-rdmav34.so'" in seen["stderr"]


def test_a_driver_of_another_card_that_is_missing_is_warned_of_though_the_device_works(
    answers: Answers,
) -> None:
    seen = answers["containers"]["no_mlx4"]

    assert seen["said"]["registered"]
    assert "libibverbs: Warning: couldn't load driver 'libmlx4-rdmav34.so'" in seen["stderr"]
    assert "mlx4" not in access(seen)["providers"]


# -- traffic
# --------------------------------------------------------------------------------------------------


def test_traffic_of_rdma_moves_the_counters_of_port_and_interface(answers: Answers) -> None:
    traffic = answers["traffic"]
    assert traffic["exit"] == [0, 0], traffic["client"]

    sent = 20 * 16384  # iterations of perftest, and bytes of each
    for device, name, counter, way in (
        ("rxe0", "d0", "sent_pkts", "sent_bytes"),
        ("rxe1", "d1", "rcvd_pkts", "received_bytes"),
    ):
        packets = [
            dict(port(traffic[when]["ports"], device)["counters"])[counter] for when in ("before", "after")
        ]
        moved = [interface(traffic[when]["networks"], name)[way] for when in ("before", "after")]
        assert packets[1] - packets[0] >= sent / 1024  # at an MTU of 1024
        assert moved[1] - moved[0] > sent


def test_soft_roce_counts_packets_and_its_bytes_are_the_interfaces(answers: Answers) -> None:
    """Other than a card's: what a detector may conclude from bytes on sockets, it may not conclude here."""
    read = answers["traffic"]
    told: dict[str, list[Any]] = {"ports": [], "networks": []}
    for when, at in (("before", 100.0), ("after", 110.0)):
        for what, source in (("ports", infiniband), ("networks", interfaces)):
            (seen,) = source.parse(Record(source.SOURCE, read[when][what]["payload"], at=at))
            told[what].append((at, seen))

    moved = between(tuple(told["ports"]), tuple(told["networks"]))

    assert moved is not None
    assert (moved.rdma_sent, moved.rdma_received) == (None, None)
    assert moved.rdma_packets is not None and moved.rdma_packets > 0
    assert moved.socket_sent is not None and moved.socket_sent * 10 > 20 * 16384


# -- jobs under `diag run`
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_diag_run_finds_what_is_wrong_and_nothing_else(answers: Answers, scenario: Scenario) -> None:
    run = answers[f"run:{scenario.name}"]
    found = [change["finding"] for change in run["changes"] if change["change"] != "resolved"]
    told = f"{run['problem']}\nfound: {found}\nterminal ends:\n{run['terminal']}"

    for wanted in scenario.wanted:
        assert any(wanted.is_met_by(finding) for finding in found), f"{wanted} was not found; {told}"
    ids = {wanted.id for wanted in scenario.wanted}
    assert not [finding for finding in found if finding["severity"] != "info" and finding["id"] not in ids], (
        told
    )
    assert not run["problem"], told


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_journal_of_the_job_tells_what_each_rank_has_of_rdma(
    answers: Answers, scenario: Scenario, tmp_path: Path
) -> None:
    seen = {
        item.rank: item
        for item in journal(answers[f"run:{scenario.name}"], tmp_path)
        if isinstance(item, RdmaAccess)
    }

    for number, rank in enumerate(scenario.ranks):
        held = (f"uverbs{number}",) if rank.registers and not rank.without else ()
        drivers = PROVIDERS not in (rank.without or ())
        assert seen[number].open_nodes == held
        assert seen[number].verbs_library is (LIBRARY not in (rank.without or ()))
        assert (seen[number].device_nodes == ()) is (DEVICE_NODES in (rank.without or ()))
        assert ("rxe" in (seen[number].providers or ())) is drivers
        assert seen[number].ipc_lock is (scenario.user == 0)


def test_a_dump_says_who_holds_which_device(answers: Answers) -> None:
    runs = ("healthy", "no_device_nodes", "memlock")
    lines = {name: answers[f"run:{name}"]["dump"]["dump"]["network"]["text"] for name in runs}

    assert "network of rank 0: holds uverbs0 open" in lines["healthy"]
    assert "2 of 2 RDMA ports active" in lines["healthy"][0]
    assert not any("holds" in line for line in lines["no_device_nodes"])
    assert "network of rank 1: holds uverbs1 open" in lines["memlock"]


def test_journal_of_a_job_whose_port_goes_down_shows_it_up_and_then_down(
    answers: Answers, tmp_path: Path
) -> None:
    readings = [
        item for item in journal(answers["run:port_goes_down"], tmp_path) if isinstance(item, RdmaPortsSeen)
    ]

    states = [tuple(port.state for port in reading.ports) for reading in readings]

    assert states[0] == (4, 4)
    assert states[-1] == (1, 1)


def journal(run: dict[str, Any], folder: Path) -> list[Observation]:
    """All facts of the run's journal, by today's parsers."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(run["run"]))) as tar:
        tar.extractall(folder, filter="data")
    (directory,) = folder.iterdir()
    return [item for record in JournalReader(segments(directory)) for item in PARSERS[record.source](record)]
