"""Runs real NCCL with two ranks in network namespaces of their own ("nodes") and keeps what it prints, one
folder a case.

    python lab.py run LIBNCCL VERSION OUT [--cases a,b] [--jobs N] [--lab FOLDER]

LIBNCCL is a libnccl.so.2, FOLDER has the stand-ins (build.sh) and `rdma-core/` with the real libibverbs.so.1.
Needs root (namespaces), Linux and one or two NVIDIA GPUs; torch is not needed. README.md tells what is real.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES, Case

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
HOSTS = ("gpu-node-0", "gpu-node-1")


# ---------------------------------------------------------------- a rank


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class Rank:
    """One process of the job: makes a communicator, sums, makes a second communicator, tells all results in a
    file."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.rank, self.folder, self.steps, self.fault = (
            given["rank"],
            Path(given["folder"]),
            given["steps"],
            given["fault"],
        )
        self.result: dict[str, Any] = {"rank": self.rank, "stage": "start"}
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", self.cuda.cuInit(0))
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuDeviceGet", self.cuda.cuDeviceGet(ctypes.byref(device), given["gpu"]))
        self.check(
            "cuDevicePrimaryCtxRetain", self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device)
        )
        self.check("cuCtxSetCurrent", self.cuda.cuCtxSetCurrent(self.context))
        self.nccl = ctypes.CDLL(given["library"])
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p

    def say(self, **facts: object) -> None:
        self.result.update(facts)
        path = self.folder / f"rank{self.rank}.json.new"
        path.write_text(json.dumps(self.result))
        path.rename(self.folder / f"rank{self.rank}.json")

    def check(self, call: str, code: int) -> None:
        if code:
            self.say(stage="failed", call=call, code=code)
            sys.exit(4)

    def check_nccl(self, call: str, code: int) -> None:
        if code:
            error = self.nccl.ncclGetErrorString(code).decode()
            last = (self.nccl.ncclGetLastError(None) or b"").decode(errors="replace")
            self.say(stage="failed", call=call, code=code, error=error, last_error=last.strip())
            sys.exit(3)

    def unique_id(self) -> UniqueId:
        path, made = self.folder / "unique-id", UniqueId()
        if self.rank == 0:
            self.check_nccl("ncclGetUniqueId", self.nccl.ncclGetUniqueId(ctypes.byref(made)))
            path.with_suffix(".new").write_bytes(bytes(made))
            path.with_suffix(".new").rename(path)
            if self.fault == "no-root":
                self.say(stage="ended")
                os._exit(0)
        while not path.exists():
            time.sleep(0.01)
        return UniqueId.from_buffer_copy(path.read_bytes())

    def wait(self, call: str, communicator: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        """Polls as torch's watchdog does: the stream, and the communicator's error."""
        while self.cuda.cuStreamQuery(stream) == 600:
            code = ctypes.c_int()
            self.nccl.ncclCommGetAsyncError(communicator, ctypes.byref(code))
            if code.value not in (0, 7):
                error = self.nccl.ncclGetErrorString(code).decode()
                last = (self.nccl.ncclGetLastError(communicator) or b"").decode(errors="replace")
                self.say(
                    stage="failed",
                    call=call,
                    code=code.value,
                    asynchronous=True,
                    error=error,
                    last_error=last.strip(),
                )
                self.nccl.ncclCommAbort(communicator)
                os._exit(3)
            time.sleep(0.002)

    def run(self) -> None:
        count = 1 << 16
        buffer, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuMemAlloc", self.cuda.cuMemAlloc_v2(ctypes.byref(buffer), ctypes.c_size_t(count * 4)))
        self.check("cuStreamCreate", self.cuda.cuStreamCreate(ctypes.byref(stream), 1))
        identity = self.unique_id()
        communicator, second = ctypes.c_void_p(), ctypes.c_void_p()
        self.say(stage="init")
        begun = time.monotonic()
        self.nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self.check_nccl(
            "ncclCommInitRank", self.nccl.ncclCommInitRank(ctypes.byref(communicator), 2, identity, self.rank)
        )
        self.say(stage="traffic", init_seconds=round(time.monotonic() - begun, 3))
        for step in range(1, self.steps + 1):
            if step == 4 and self.fault.startswith("kill") and self.rank == 1:
                self.say(stage="killed")
                os.kill(os.getpid(), signal.SIGKILL)
            # 0x3f800000 is 1.0
            self.check(
                "cuMemsetD32", self.cuda.cuMemsetD32Async(buffer, 0x3F800000, ctypes.c_size_t(count), stream)
            )
            code = self.nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(count), 7, 0, communicator, stream)
            self.check_nccl("ncclAllReduce", code)
            self.wait("ncclAllReduce", communicator, stream)
            self.say(steps=step)
        last = ctypes.c_float()
        end = ctypes.c_uint64(buffer.value + count * 4 - 4)
        self.check("cuMemcpyDtoH", self.cuda.cuMemcpyDtoH_v2(ctypes.byref(last), end, ctypes.c_size_t(4)))
        self.say(stage="split", sum_right=last.value == 2.0)
        self.check_nccl(
            "ncclCommSplit", self.nccl.ncclCommSplit(communicator, 0, self.rank, ctypes.byref(second), None)
        )
        code = self.nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(count), 7, 0, second, stream)
        self.check_nccl("ncclAllReduce", code)
        self.wait("ncclAllReduce", second, stream)
        self.say(stage="destroy")
        self.nccl.ncclCommDestroy(second)
        self.nccl.ncclCommDestroy(communicator)
        self.say(stage="done")


# ---------------------------------------------------------------- a node: namespaces, then its ranks


def libc_call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def node_main(plan: dict[str, Any]) -> int:
    """In a process of its own: a host name and a network, then one process a rank; ends with the ranks."""
    number: int = plan["node"]
    if plan["namespaces"]:
        libc_call("unshare", CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWNS)
        socket.sethostname(HOSTS[number])
        libc_call("mount", b"none", b"/", None, 0x44000, None)  # MS_REC | MS_PRIVATE
        if plan["shm"]:
            libc_call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=64k")
        print("made", flush=True)
        sys.stdin.readline()  # the other end has put eth0 here
        from pyroute2 import IPRoute  # type: ignore[import-not-found,import-untyped,unused-ignore]

        with IPRoute() as ip:
            ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
            for index in ip.link_lookup(ifname=plan["link"]):
                ip.link("set", index=index, ifname="eth0")
                if plan["address"]:
                    Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("1")
                    ip.addr("add", index=index, address=plan["address"], prefixlen=24)
                    ip.link("set", index=index, state="up")
    children = []
    for rank in plan["ranks"]:
        with open(rank["log"], "ab") as log:
            command = [sys.executable, __file__, "rank", json.dumps(rank)]
            children.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=rank["env"])
            )
    codes: dict[str, int] = {}
    while len(codes) < len(children):
        for rank, child in zip(plan["ranks"], children, strict=True):
            if str(rank["rank"]) not in codes and child.poll() is not None:
                codes[str(rank["rank"])] = child.returncode
                path = Path(rank["folder"]) / f"node{number}.json"
                path.with_suffix(".new").write_text(json.dumps(codes))
                path.with_suffix(".new").rename(path)
        time.sleep(0.05)
    sys.stdin.readline()  # the network stays until the case ends: a node outlives its ranks
    return 0


# ---------------------------------------------------------------- a case


@dataclass(frozen=True)
class Setup:
    library: str
    lab: Path
    out: Path
    gpus: int
    namespaces: bool


def fake_sysfs(folder: Path, verbs: str) -> None:
    """What NCCL reads of an RDMA device in /sys: where it is on PCI, and which RoCE version a GID entry is."""
    names = [line.split()[1] for line in verbs.splitlines() if line.startswith("device ")]
    for i, name in enumerate(names):
        bus = f"{0x21 + i:02x}"
        pci = folder / f"sys/devices/pci0000:{bus}/0000:{bus}:00.0"
        pci.mkdir(parents=True)
        values = {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"}
        values |= {"subsystem_vendor": "0x15b3", "subsystem_device": "0x0040"}
        values |= {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16", "numa_node": "0"}
        for file, value in values.items():
            (pci / file).write_text(value + "\n")
        bus_folder = folder / "sys/bus/pci"
        bus_folder.mkdir(parents=True, exist_ok=True)
        (pci / "subsystem").symlink_to(bus_folder)
        rdma = folder / "sys/class/infiniband" / name
        rdma.mkdir(parents=True)
        (rdma / "device").symlink_to(pci)
        (folder / f"sys/class/pci_bus/0000:{bus}").mkdir(parents=True)
        (folder / f"sys/class/0000:{bus}:00.0").symlink_to(pci)  # pci_bus/BUS/../../DEVICE, as NCCL asks
        types = rdma / "ports/1/gid_attrs/types"
        types.mkdir(parents=True)
        for index in range(16):
            (types / str(index)).write_text("RoCE v2\n" if index % 2 else "IB/RoCE v1\n")


def rank_plan(setup: Setup, case: Case, rank: int, work: Path) -> dict[str, Any]:
    lab = setup.lab
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "NCCL_DEBUG": case.level,
        "NCCL_NVLS_ENABLE": "0",
    }
    if "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    gpu = rank % setup.gpus
    if case.nodes == 2:
        env["CUDA_VISIBLE_DEVICES"], gpu = str(gpu), 0
        if not setup.namespaces:
            env["NCCL_HOSTID"] = HOSTS[rank]
    if case.same_gpu:
        gpu = 0
    settings = {**case.env, **case.rank_env.get(rank, {})}
    env.update({name: value.format(folder=work, lab=lab) for name, value in settings.items()})
    verbs = case.rank_verbs.get(rank, case.verbs)
    libraries = []
    if verbs == "":
        libraries.append(str(lab / "rdma-core"))
    elif verbs:
        told = verbs.replace("{host}", str(10 + rank if case.nodes == 2 else 10))
        (work / f"verbs{rank}.conf").write_text(told)
        sysfs = work / f"sysfs{rank}"
        fake_sysfs(sysfs, told)
        libraries.append(str(lab))
        if "LAB_NO_MLX5" not in os.environ:
            libraries.append(str(lab / "mlx5"))
        env |= {
            "IBV_STANDIN": str(work / f"verbs{rank}.conf"),
            "IBV_STANDIN_SOCKETS": str(work),
            "IBV_STANDIN_SYSFS": str(sysfs),
        }
        env["LD_PRELOAD"] = str(lab / "standin_sysfs.so") + os.environ.get("LAB_PRELOAD", "")
    env["LD_LIBRARY_PATH"] = ":".join(
        libraries + ([os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else [])
    )
    log = work / ("ranks.log" if case.one_file else f"rank{rank}.log")
    given = {
        "library": setup.library,
        "rank": rank,
        "gpu": gpu,
        "folder": str(work),
        "steps": case.steps,
        "fault": case.fault,
    }
    return {**given, "env": env, "log": str(log), "settings": settings}


def connect_nodes(case: Case, nodes: list[subprocess.Popen[str]], serial: int) -> None:
    """A pair of linked interfaces, one end in each node's network (on one node, the other end stays here)."""
    from pyroute2 import IPRoute  # type: ignore[import-not-found,import-untyped,unused-ignore]

    ends = [f"lab{serial}a", f"lab{serial}b"]
    with IPRoute() as ip:
        ip.link("add", ifname=ends[0], kind="veth", peer=ends[1])
        for end, node in zip(ends, nodes, strict=False):
            ip.link("set", index=ip.link_lookup(ifname=end)[0], net_ns_pid=node.pid)
        if len(nodes) == 1:
            ip.link("set", index=ip.link_lookup(ifname=ends[1])[0], state="up")


def exit_codes(work: Path, known: dict[str, int | None]) -> dict[str, int | None]:
    for path in work.glob("node*.json"):
        known = known | json.loads(path.read_text())
    return known


def record(setup: Setup, case: Case, serial: int) -> dict[str, Any]:
    work = Path(f"/tmp/nccl-lab/{os.getpid()}-{serial}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    plans = [rank_plan(setup, case, rank, work) for rank in (0, 1)]
    nodes: list[subprocess.Popen[str]] = []
    begun = time.monotonic()
    for number in range(case.nodes):
        plan: dict[str, Any] = {"node": number, "namespaces": setup.namespaces, "shm": case.fault == "shm"}
        plan["ranks"] = plans if case.nodes == 1 else [plans[number]]
        plan["link"] = f"lab{serial}{'ab'[number]}"
        plan["address"] = None if case.no_address and number == 1 else f"192.0.2.{10 + number}"
        command = [sys.executable, __file__, "node", json.dumps(plan)]
        pipe = subprocess.PIPE
        nodes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
    codes: dict[str, int | None] = {"0": None, "1": None}
    try:
        if setup.namespaces:
            for node in nodes:
                assert node.stdout is not None
                node.stdout.readline()
            connect_nodes(case, nodes, serial)
            for node in nodes:
                assert node.stdin is not None
                node.stdin.write("go\n")
                node.stdin.flush()
        deadline = begun + case.seconds
        while time.monotonic() < deadline and None in (codes := exit_codes(work, codes)).values():
            time.sleep(0.1)
    finally:
        for node in nodes:
            try:
                os.killpg(node.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for node in nodes:
            node.communicate()
    kept = setup.out / case.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for log in sorted(work.glob("*.log")):
        text = log.read_bytes()
        (kept / log.name).write_bytes(
            text.replace(str(work).encode(), b"/srv/job").replace(str(setup.lab).encode(), b"/opt/lab")
        )
    results = [json.loads(p.read_text()) if (p := work / f"rank{r}.json").exists() else None for r in (0, 1)]
    verbs = [case.rank_verbs.get(r, case.verbs) for r in (0, 1)]
    shutil.rmtree(work, ignore_errors=True)
    played = [
        "absent" if v is None else "rdma-core, no device" if v == "" else v.strip().splitlines()
        for v in verbs
    ]
    return {
        "case": case.name,
        "nodes": case.nodes,
        "environment": [p["settings"] | {"NCCL_DEBUG": case.level} for p in plans],
        "libibverbs": played,
        "fault": case.fault or ("rank 1's node has no interface" if case.no_address else "") or None,
        "exit_codes": [codes["0"], codes["1"]],
        "cut_after_seconds": case.seconds if None in codes.values() else None,
        "seconds": round(time.monotonic() - begun, 1),
        "results": results,
        "expect": case.expect,
    }


def run(arguments: argparse.Namespace) -> int:
    lab, out = Path(arguments.lab).resolve(), Path(arguments.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    (lab / "broken-plugin.so").write_text("not a library\n")
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*"))) or 1
    version = tuple(int(part) for part in arguments.version.split(".")[:2])
    wanted = set(arguments.cases.split(",")) if arguments.cases else None
    done = out / "manifest.json"
    kept = json.loads(done.read_text())["cases"] if done.exists() else []
    have = {case["case"] for case in kept}
    todo = [c for c in CASES if version >= c.minimum and (c.name in wanted if wanted else c.name not in have)]
    todo = [c for c in todo if gpus > 1 or c.nodes == 2 or c.same_gpu]
    setup = Setup(arguments.library, lab, out, gpus, not arguments.no_namespaces)

    def one(item: tuple[int, Case]) -> dict[str, Any] | None:
        try:
            return record(setup, item[1], item[0] + os.getpid() % 90 * 100)
        except Exception as error:
            print(f"{item[1].name}: {error!r}", file=sys.stderr, flush=True)
            return None

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for told in pool.map(one, enumerate(todo)):
            if told:
                kept = [case for case in kept if case["case"] != told["case"]] + [told]
                manifest = {
                    "nccl": arguments.version,
                    "gpus": gpus,
                    "namespaces": setup.namespaces,
                    "cases": kept,
                }
                done.write_text(json.dumps(manifest, indent=1) + "\n")
    return 0


def main() -> int:
    if sys.argv[1] == "rank":
        given = json.loads(sys.argv[2])
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: no rank outlives its node
        if given["fault"] != "kill-buffered":
            # As on a terminal. Into a pipe or a file the C library holds 4 KiB back, and a killed process
            # takes them with it.
            libc = ctypes.CDLL(None)
            libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, ctypes.c_size_t(0))
        Rank(given).run()
        return 0
    if sys.argv[1] == "node":
        return node_main(json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=["run"])
    parser.add_argument("library")
    parser.add_argument("version")
    parser.add_argument("out")
    parser.add_argument("--cases", default="")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--lab", default=".")
    parser.add_argument("--no-namespaces", action="store_true")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
