"""What is recorded: one entry a case. `expect` is the verdict, [finding, cause] each, none when empty: of the
logs alone, and of whoever watches the processes where a rank is killed."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CASES", "Case"]

SUBSYSTEMS = {"NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET"}

NO_DEVICE = ""  # a libibverbs that finds no device; None is an image without libibverbs
IB = """device mlx5_0 link=ib
device mlx5_1 link=ib
gid mlx5_0 0 fe80::a288:c203:1:1
gid mlx5_0 1 ::
gid mlx5_1 0 fe80::a288:c203:2:1
gid mlx5_1 1 ::
"""
IB_DOWN = IB.replace("link=ib", "link=ib state=1")
IB_INIT = IB.replace("link=ib", "link=ib state=2")
IB_ONE_DOWN = IB.replace("mlx5_1 link=ib", "mlx5_1 link=ib state=1")
# RDMA over Ethernet as a bond of two ports: entries 0-1 link-local, 2-3 of the interface's IPv4 address (RoCE
# v1, then v2).
ROCE = """device mlx5_bond_0 link=eth
gid mlx5_bond_0 0 fe80::a288:c2ff:fe01:1
gid mlx5_bond_0 1 fe80::a288:c2ff:fe01:1
gid mlx5_bond_0 2 ::ffff:192.0.2.{host}
gid mlx5_bond_0 3 ::ffff:192.0.2.{host}
gid mlx5_bond_0 4 ::
"""
SIXTEEN = "".join(f"device mlx5_{n} link=ib\ngid mlx5_{n} 0 fe80::a288:c203:{n + 1}:1\n" for n in range(16))


@dataclass(frozen=True)
class Case:
    name: str
    verbs: str | None = NO_DEVICE
    env: dict[str, str] = field(default_factory=dict)
    expect: list[list[str]] = field(default_factory=list)
    nodes: int = 2
    seconds: float = 18
    rank_verbs: dict[int, str | None] = field(default_factory=dict)
    rank_env: dict[int, dict[str, str]] = field(default_factory=dict)
    level: str = "INFO"
    one_file: bool = False
    same_gpu: bool = False
    # kill, kill-buffered: rank 1 kills itself at step 4; no-root: rank 0 ends before it answers; shm:
    # /dev/shm of 64 KiB
    fault: str = ""
    no_address: bool = False  # rank 1's node has no IP interface but lo
    steps: int = 8
    old_rdma_core: bool = False
    minimum: tuple[int, int] = (2, 18)


def fallback(cause: str) -> list[list[str]]:
    return [["ib-fallback", cause]]


CASES = [
    # Without RDMA, or RDMA not used
    Case("no-device", expect=fallback("no_device")),
    Case("no-device-subsys", env=SUBSYSTEMS, expect=fallback("no_device")),
    Case("no-device-warn", level="WARN", expect=[]),
    Case("no-device-one-file", one_file=True, expect=fallback("no_device")),
    Case(
        "no-device-debug-file",
        env={"NCCL_DEBUG_FILE": "{folder}/nccl.%h.%p.log"},
        expect=fallback("no_device"),
    ),
    Case("no-libibverbs", verbs=None, expect=fallback("libibverbs_missing")),
    Case("ib-disable", verbs=IB, env={"NCCL_IB_DISABLE": "1"}, expect=fallback("ib_disabled")),
    Case("net-socket", verbs=IB, env={"NCCL_NET": "Socket"}, expect=fallback("net_forced")),
    Case("net-ib-no-device", env={"NCCL_NET": "IB"}, expect=[["nccl-init-error", "network_not_found"]]),
    Case(
        "net-ib-no-libibverbs",
        verbs=None,
        env={"NCCL_NET": "IB"},
        expect=[["nccl-init-error", "network_not_found"]],
    ),
    Case("hca-no-match", verbs=IB, env={"NCCL_IB_HCA": "mlx5_7"}, expect=fallback("hca_filter")),
    Case("hca-exclude", verbs=IB, env={"NCCL_IB_HCA": "^mlx5"}, expect=fallback("hca_filter")),
    Case(
        "hca-exclude-subsys",
        verbs=IB,
        env={"NCCL_IB_HCA": "^mlx5", **SUBSYSTEMS},
        expect=fallback("hca_filter"),
    ),
    Case("ports-down", verbs=IB_DOWN, expect=fallback("no_device")),
    Case("ports-init", verbs=IB_INIT, expect=fallback("no_device")),
    Case("open-device-eperm", verbs=IB + "fail open_device errno=1\n", expect=fallback("device_open_failed")),
    Case("oob-ifname-missing", verbs=IB, env={"NCCL_OOB_NET_IFNAME": "ib9"}, minimum=(2, 24)),
    Case(
        "mixed-no-device",
        seconds=11,
        verbs=IB,
        rank_verbs={1: NO_DEVICE},
        expect=[["transport-mismatch", "no_device"]],
    ),
    Case(
        "mixed-ib-disable",
        seconds=11,
        verbs=IB,
        rank_env={1: {"NCCL_IB_DISABLE": "1"}},
        expect=[["transport-mismatch", "ib_disabled"]],
    ),
    # Interfaces and the rendezvous
    Case(
        "ifname-missing",
        seconds=7,
        env={"NCCL_SOCKET_IFNAME": "ib9"},
        expect=[["nccl-no-interface", "ifname_matches_nothing"]],
    ),
    Case(
        "ifname-missing-subsys",
        seconds=7,
        env={"NCCL_SOCKET_IFNAME": "ib9", **SUBSYSTEMS},
        expect=[["nccl-no-interface", "ifname_matches_nothing"]],
    ),
    Case(
        "ifname-lo", seconds=11, env={"NCCL_SOCKET_IFNAME": "lo"}, expect=[["nccl-no-interface", "loopback"]]
    ),
    Case(
        "ifname-missing-one",
        seconds=11,
        rank_env={1: {"NCCL_SOCKET_IFNAME": "ib9"}},
        expect=[["nccl-no-interface", "ifname_matches_nothing"]],
    ),
    Case("bootstrap-refused", seconds=11, fault="no-root", expect=[["nccl-init-error", "peer_unreachable"]]),
    Case("bootstrap-no-route", seconds=11, no_address=True, expect=[["nccl-no-interface", "loopback"]]),
    # RDMA that works
    Case("ib-healthy", verbs=IB),
    Case("ib-healthy-subsys", verbs=IB, env=SUBSYSTEMS),
    Case("ib-healthy-warn", verbs=IB, level="WARN"),
    Case("ib-port-down-one", verbs=IB_ONE_DOWN),
    Case("ib-port-down-one-rank", verbs=IB, rank_verbs={1: IB_ONE_DOWN}),
    Case("ib-sixteen", verbs=SIXTEEN),
    Case("hca-exact", verbs=IB, env={"NCCL_IB_HCA": "=mlx5_1"}),
    Case("roce-bond", verbs=ROCE),
    Case("roce-bond-subsys", verbs=ROCE, env=SUBSYSTEMS),
    # RDMA that fails
    Case(
        "reg-mr-enomem",
        verbs=IB + "fail reg_mr errno=12\n",
        expect=[["memlock-limit", "registration_failed"]],
    ),
    Case(
        "reg-mr-eperm", verbs=IB + "fail reg_mr errno=1\n", expect=[["memlock-limit", "registration_failed"]]
    ),
    Case(
        "create-cq-enomem",
        verbs=IB + "fail create_cq errno=12\n",
        expect=[["memlock-limit", "registration_failed"]],
    ),
    Case(
        "create-qp-enomem",
        verbs=IB + "fail create_qp errno=12\n",
        expect=[["memlock-limit", "registration_failed"]],
    ),
    Case(
        "modify-qp-timeout",
        verbs=IB + "fail modify_qp errno=110 state=2\n",
        env={"NCCL_IB_MQP_RETRY_CNT": "2"},
        expect=[["ib-error", "no_route"]],
    ),
    Case(
        "modify-qp-timeout-subsys",
        seconds=11,
        verbs=IB + "fail modify_qp errno=110 state=2\n",
        env=SUBSYSTEMS,
        expect=[["ib-error", "no_route"]],
    ),
    Case(
        "modify-qp-einval",
        verbs=ROCE + "fail modify_qp errno=22 state=2\n",
        env={"NCCL_IB_GID_INDEX": "4"},
        expect=[["ib-error", "wrong_gid_index"]],
    ),
    Case(
        "modify-qp-enetunreach",
        verbs=ROCE + "fail modify_qp errno=101 state=2\n",
        expect=[["ib-error", "no_route"]],
    ),
    Case(
        "modify-qp-enodev",
        verbs=ROCE + "fail modify_qp errno=19 state=2\n",
        expect=[["ib-error", "gid_vanished"]],
    ),
    Case(
        "completion-12",
        seconds=11,
        verbs=IB,
        rank_verbs={0: IB + "complete status=12 vendor=129 after=60\n"},
        expect=[["ib-error", "retry_exceeded"]],
    ),
    Case(
        "completion-12-roce",
        seconds=11,
        verbs=ROCE,
        rank_verbs={0: ROCE + "complete status=12 vendor=129 after=60\n"},
        expect=[["ib-error", "retry_exceeded"]],
    ),
    Case(
        "completion-5",
        seconds=11,
        verbs=IB,
        rank_verbs={0: IB + "complete status=5 vendor=249 after=60\n"},
        expect=[["ib-error", "flushed"]],
    ),
    Case(
        "completion-4",
        seconds=11,
        verbs=IB,
        rank_verbs={0: IB + "complete status=4 vendor=81 after=60\n"},
        expect=[["ib-error", "local_protection"]],
    ),
    Case(
        "completion-10",
        seconds=11,
        verbs=IB,
        rank_verbs={0: IB + "complete status=10 vendor=136 after=60\n"},
        expect=[["ib-error", "remote_access"]],
    ),
    Case(
        "port-flap",
        verbs=IB + "event 10 after=0.1 device=mlx5_0 port=1\nevent 9 after=0.2 device=mlx5_0 port=1\n",
        steps=40,
        expect=[["ib-port", "link_downed"]],
    ),
    Case(
        "port-error",
        verbs=IB,
        rank_verbs={1: IB + "event 10 after=0.1 device=mlx5_0 port=1\n"},
        steps=40,
        expect=[["ib-port", "went_down"]],
    ),
    Case("gid-change", verbs=ROCE + "event 18 after=0.1\nevent 11 after=0.1\n", steps=40),
    Case(
        "device-fatal",
        verbs=IB,
        rank_verbs={0: IB + "event 8 after=0.1 device=mlx5_0\n"},
        steps=40,
        expect=[["ib-error", "fatal_event"]],
    ),
    Case(
        "qp-fatal",
        verbs=IB,
        rank_verbs={0: IB + "event 3 after=0.1 device=mlx5_0\n"},
        steps=40,
        expect=[["ib-error", "fatal_event"]],
    ),
    # Plugins
    Case("plugin-missing", verbs=IB, env={"NCCL_NET_PLUGIN": "/opt/plugin/libnccl-net-none.so"}),
    Case("plugin-broken", verbs=IB, env={"NCCL_NET_PLUGIN": "{lab}/broken-plugin.so"}),
    Case("plugin-no-symbols", verbs=IB, env={"NCCL_NET_PLUGIN": "{lab}/standin_sysfs.so"}),
    # One node
    Case("duplicate-gpu", nodes=1, same_gpu=True, expect=[["duplicate-gpu", "same_gpu"]]),
    Case("one-node", nodes=1),
    Case("one-node-ib", nodes=1, verbs=IB),
    Case("one-node-no-p2p-shm", nodes=1, env={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),
    Case("one-node-no-p2p", nodes=1, env={"NCCL_P2P_DISABLE": "1"}),
    Case(
        "shm-full",
        nodes=1,
        env={"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"},
        fault="shm",
        expect=[["shm-too-small", "exhausted"]],
    ),
    # A peer goes
    Case(
        "peer-killed",
        seconds=11,
        fault="kill",
        steps=200,
        expect=[["rank-died", ""], ["ib-fallback", "no_device"]],
    ),
    Case(
        "peer-killed-buffered",
        seconds=11,
        fault="kill-buffered",
        steps=200,
        expect=[["rank-died", ""], ["ib-fallback", "no_device"]],
    ),
    Case("peer-killed-ib", seconds=11, verbs=IB, fault="kill", steps=200, expect=[["rank-died", ""]]),
    Case("peer-killed-one-node", seconds=11, nodes=1, fault="kill", steps=200, expect=[["rank-died", ""]]),
]
