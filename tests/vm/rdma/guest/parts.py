"""What is read of the machine, part by part. Each part leaves the machine as it found it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diag.sources.network import infiniband
from tests.vm.guest.shell import as_user, sh, until
from tests.vm.rdma.guest import facts, network
from tests.vm.rdma.guest.containers import Container
from tests.vm.rdma.scenarios import DEVICE_NODES, LIBRARY, MIB, NOBODY, PROVIDERS

_HOLD = [sys.executable, "-u", str(Path(__file__).with_name("hold.py"))]
_REGISTERED = 16 * MIB
_PERFTEST_PORT = 18515
_SLOTS = 4  # of each table of a port: two are in use, and the empty ones are all alike


def machine() -> dict[str, str]:
    rdma_core = sh("dpkg-query -W -f '${Version}' libibverbs1")
    return {"kernel": sh("uname -r").strip(), "rdma_core": rdma_core, "link": sh("rdma link")}


def ports() -> dict[str, Any]:
    """One reader throughout, as in the hub: the same port up, down, up again, a device that goes and comes;
    and what the tools of rdma-core say of them."""
    reader = infiniband.InfinibandReader()
    seen = {"up": facts.ports(reader), "devinfo": sh("ibv_devinfo"), "tree": _tree(network.SYS / "rxe0")}
    network.set_link(0, up=False)
    try:
        seen |= {
            "down": facts.ports(reader),
            "devinfo_down": sh("ibv_devinfo"),
            "tree_down": _tree(network.SYS / "rxe0"),
            "networks_down": facts.networks(),
        }
    finally:
        network.set_link(0, up=True)
    seen["up_again"] = facts.ports(reader)
    network.remove_device(1)
    try:
        seen["one_gone"] = facts.ports(reader)
    finally:
        network.add_device(1)
    return {**seen, "both_again": facts.ports(reader)}


def processes() -> dict[str, Any]:
    """A process that registers 16 MiB: with the right to lock memory, and without it under several limits."""
    found = {}
    for name, user, limit in (
        ("root_8_mib", 0, 8 * MIB), ("user_8_mib", NOBODY, 8 * MIB), ("user_unlimited", NOBODY, None), ("user_0", NOBODY, 0),
    ):  # fmt: skip
        found[name] = _looked_at(as_user(user, limit), "rxe0")
    # Root of a user namespace of its own has all capabilities there, and none that lets it lock memory here.
    found["namespace_root_8_mib"] = _looked_at(
        [*as_user(NOBODY, 8 * MIB), "unshare", "--user", "--map-root-user"], "rxe0"
    )
    sh("chmod 600 /dev/infiniband/uverbs0")
    try:
        found["not_permitted"] = _looked_at(as_user(NOBODY, None), "rxe0")
    finally:
        sh("chmod 666 /dev/infiniband/uverbs0")
    return found


def containers() -> dict[str, Any]:
    """The same process in containers that lack something of RDMA, and in one that lacks nothing."""
    found = {}
    for name, without in (
        ("whole", ()), ("no_device_nodes", (DEVICE_NODES,)), ("no_library", (LIBRARY,)), ("no_providers", (PROVIDERS,)),
        ("no_mlx4", (f"{PROVIDERS}/libmlx4-rdmav34.so",)),
    ):  # fmt: skip
        container = Container(name, without)
        try:
            found[name] = _looked_at(container.command, "")
        finally:
            container.remove()
    return found


def traffic() -> dict[str, Any]:
    """perftest from one end of the cable to the other."""
    before = {"ports": facts.ports(), "networks": facts.networks()}
    words = [
        "ib_write_bw",
        "--gid-index",
        "1",
        "--iters",
        "20",
        "--size",
        "16384",
        "--port",
        str(_PERFTEST_PORT),
        "--ib-dev",
    ]
    server = subprocess.Popen([*words, "rxe1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until(_perftest_listens, 20, "a server that listens")
        to_server = [*words, "rxe0", network.ADDRESSES[1]]
        client = subprocess.run(to_server, capture_output=True, text=True, timeout=60, check=False)
        said, _ = server.communicate(timeout=20)
    finally:
        server.kill()
    after = {"ports": facts.ports(), "networks": facts.networks()}
    return {"before": before, "after": after, "exit": [client.returncode, server.returncode],
            "client": client.stdout + client.stderr, "server": said}  # fmt: skip


def _perftest_listens() -> bool:
    return any(f":{_PERFTEST_PORT:04X} " in Path("/proc/net", table).read_text() for table in ("tcp", "tcp6"))


def _looked_at(prefix: Sequence[str], device: str) -> dict[str, Any]:
    with _holding([*prefix, *_HOLD, device, str(_REGISTERED)]) as (process, said, stderr):
        proc = f"/proc/{process.pid}"
        return {
            "said": said, **facts.access(process.pid), "stderr": stderr.read_text("utf-8", "replace"),
            "fds": sh(f"ls -l {proc}/fd"), "maps": sh(f"grep -E 'ibverbs|rdmav' {proc}/maps || true"),
            "status": sh(f"cat {proc}/status"),
        }  # fmt: skip


@contextlib.contextmanager
def _holding(words: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any], Path]]:
    stderr = Path("/tmp/hold.stderr")
    with open(stderr, "wb") as file:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{list(words)} said nothing: {stderr.read_text('utf-8', 'replace')}")
        yield process, json.loads(line), stderr
    finally:
        process.stdin.close()
        process.wait(10)


def _tree(folder: Path) -> dict[str, str]:
    """Files below a folder of /sys and what they hold; of one that cannot be read the error."""
    texts = {}
    for path in sorted(folder.rglob("*")):
        empty_slot = path.parent.name in ("gids", "types", "ndevs", "pkeys") and int(path.name) >= _SLOTS
        if path.is_symlink() or not path.is_file() or "power" in path.parts or empty_slot:
            continue
        try:
            texts[str(path.relative_to(folder))] = path.read_text()
        except OSError as error:
            texts[str(path.relative_to(folder))] = f"!{error.strerror}"
    return texts
