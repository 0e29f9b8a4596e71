"""Several nodes on one machine: namespaces (network, host name, mounts, pids), a cable from each to one
switch.

A node has its address (10.77.0.1 is node 0), its host name, its own /etc/hosts, home, /tmp/diag-UID and
process table. The switch has a namespace of its own too, so nothing of this machine's network changes, labs
run side by side, and nothing has a route to elsewhere.

Each namespace lives as long as its pid 1, which ends when its standard input does: when whoever made the lab
is gone, killed even, the kernel kills all processes of the nodes and takes the network away.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psutil

__all__ = ["Lab", "Node", "make_lab", "why_not"]

T = TypeVar("T")

NETWORK = "10.77.0"
KEPT = ("PATH", "LANG", "VIRTUAL_ENV")  # of the environment of whoever makes the lab
_ENTER = ("--net", "--mount", "--uts", "--pid")
# Pid 1 of a node: takes in orphans, says when it is there, and lives until the lab lets go of its standard
# input.
_INIT = "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('up', flush=True); sys.stdin.read()"
# The node's own by a mount, and short: Python's DataLoader makes sockets below it, whose names may have 107
# bytes.
_TEMPORARY = f"/tmp/diag-{os.getuid()}/t"
# sysfs shows the interfaces of the network namespace in which it was mounted; cgroups lie below it and must
# stay to be seen.
_MOUNTS = """
set -e
hostname "$1"
mkdir -p "$2/cgroup" "$2/home" "$2/diag/t" "/tmp/diag-$(id -u)"
mount --rbind /sys/fs/cgroup "$2/cgroup"
umount --lazy /sys
mount -t sysfs sysfs /sys
mount --rbind "$2/cgroup" /sys/fs/cgroup
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/resolv.conf" /etc/resolv.conf
mount --bind "$2/diag" "/tmp/diag-$(id -u)"
"""


class Namespace:
    """Network, host name, mounts and pids of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._holder = subprocess.Popen(
            ["unshare", *_ENTER, "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
             sys.executable, "-I", "-S", "-c", _INIT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != "up\n":
            raise OSError(self._holder.stderr.read().strip() or "unshare failed")
        (init,) = psutil.Process(self._holder.pid).children()
        self.init = init
        self.identity = os.readlink(f"/proc/{init.pid}/ns/pid")

    def words(self, *words: str) -> list[str]:
        """A command line that runs these words in here, in the working directory of the caller."""
        return ["nsenter", "--target", str(self.init.pid), *_ENTER, f"--wd={Path.cwd()}", "--", *words]

    def call(self, *words: str, check: bool = True) -> str:
        return self._call(self.words(*words), check=check)

    def network(self, *words: str, check: bool = True) -> str:
        """In its network alone: with the pids of this machine, and when the node's own files are of no
        matter."""
        return self._call(["nsenter", "--target", str(self.init.pid), "--net", "--", *words], check=check)

    def _call(self, words: Sequence[str], *, check: bool) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert not check or done.returncode == 0, f"{self.name}: {' '.join(words)}: {done.stderr.strip()}"
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """All that runs in here, but pid 1."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if (
                    process.pid != self.init.pid
                    and os.readlink(f"/proc/{process.pid}/ns/pid") == self.identity
                ):
                    found.append(process)
        return found

    def within(self, work: Callable[[], T]) -> T:
        """What `work` returns, done on a thread in this network; its sockets reach what processes in here
        reach."""
        with open(f"/proc/{self.init.pid}/ns/net") as network, ThreadPoolExecutor(1) as pool:
            return pool.submit(_in_network, network.fileno(), work).result()

    def kill_all(self) -> None:
        """SIGKILL to everything but pid 1, until nothing is left: who is killed late may have started
        another."""
        deadline = time.monotonic() + 30
        while left := self.processes():
            assert time.monotonic() < deadline, f"{self.name}: these do not die: {left}"
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=2)

    def close(self) -> None:
        """The end of pid 1 is the end of all that is in here; returns when the kernel is through with it."""
        assert (
            self._holder.stdin is not None
            and self._holder.stdout is not None
            and self._holder.stderr is not None
        )
        self._holder.stdin.close()
        try:
            self._holder.wait(30)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait(30)
        self._holder.stdout.close()
        self._holder.stderr.close()


def _in_network(descriptor: int, work: Callable[[], T]) -> T:
    """For a thread that ends after it: setns changes the thread that calls it. os.setns came with Python
    3.12."""
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    return work()


class Node(Namespace):
    """One machine of the lab; `folder` holds what is its own."""

    def __init__(self, rank: int, folder: Path, switch: Namespace) -> None:
        self.rank = rank
        self.address = f"{NETWORK}.{rank + 1}"
        self.folder = folder
        self.hosts = folder / "hosts"
        self.port = f"port{rank}"  # the other end of its cable
        self._switch = switch
        folder.mkdir(parents=True)
        self.hosts.write_text("")
        (folder / "resolv.conf").write_text("")
        super().__init__(f"node{rank}")
        try:
            self.call("sh", "-c", _MOUNTS, "sh", self.name, str(folder))
            switch.network(
                "ip",
                "link",
                "add",
                self.port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                str(self.init.pid),
            )
            switch.network("ip", "link", "set", self.port, "master", "br0", "up")
            self.network("ip", "link", "set", "lo", "up")
            self.network("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
            self.raise_link()
        except BaseException:
            self.close()
            raise

    # -- running things -----------------------------------------------------------------------------------

    def environment(self, **env: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in KEPT}
        own = {"HOME": str(self.folder / "home"), "TMPDIR": _TEMPORARY, "PYTHONDONTWRITEBYTECODE": "1"}
        return {**kept, **own, **env}

    def start(self, *words: str, env: Mapping[str, str] | None = None, **pipes: Any) -> subprocess.Popen[str]:
        """With pipes, unless told otherwise."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
        return subprocess.Popen(self.words(*words), text=True, env=self.environment(**(env or {})), **pipes)

    def knows(self, *lines: str) -> None:
        """What /etc/hosts says here."""
        self.hosts.write_text("".join(f"{line}\n" for line in ("127.0.0.1 localhost", *lines)))

    # -- its link -----------------------------------------------------------------------------------------

    def raise_link(self, name: str = "eth0") -> None:
        """Up, and running: the kernel says the latter later."""
        self.network("ip", "link", "set", name, "up")
        deadline = time.monotonic() + 20
        while "LOWER_UP" not in (told := self.link(name))["flags"] or told["operstate"] != "UP":
            assert time.monotonic() < deadline, f"{name} does not come up: {told}"

    def link(self, name: str = "eth0") -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.network("ip", "-json", "link", "show", name))[0]
        return told

    def pull_cable(self) -> None:
        """At the switch: the node keeps address and route, its card says NO-CARRIER, and no connection is
        closed."""
        self._switch.network("ip", "link", "set", self.port, "down")

    def plug_cable(self) -> None:
        self._switch.network("ip", "link", "set", self.port, "up")
        self.raise_link()

    def limit_rate(self, rate: str) -> None:
        """Both ways, by a token bucket: `1mbit`. A full queue is half a second long."""
        bucket = ("root", "tbf", "rate", rate, "burst", "16kb", "latency", "500ms")
        self.network("tc", "qdisc", "replace", "dev", "eth0", *bucket)
        self._switch.network("tc", "qdisc", "replace", "dev", self.port, *bucket)

    def unlimit_rate(self) -> None:
        self.network("tc", "qdisc", "delete", "dev", "eth0", "root", check=False)
        self._switch.network("tc", "qdisc", "delete", "dev", self.port, "root", check=False)

    def drop_port(self, port: int) -> None:
        """Nothing goes out to or comes in for this TCP port, not even an answer; loopback goes on."""
        self.network(
            "nft",
            "add table inet dropped; "
            "add chain inet dropped in { type filter hook input priority 0; }; "
            "add chain inet dropped out { type filter hook output priority 0; }; "
            + "".join(
                f"add rule inet dropped {way} {card} eth0 tcp {end} {port} drop; "
                for way, card in (("in", "iifname"), ("out", "oifname"))
                for end in ("dport", "sport")
            ),
        )

    def filter_nothing(self) -> None:
        self.network("nft", "flush", "ruleset")

    # -- its end ------------------------------------------------------------------------------------------

    def power_off(self) -> None:
        """As when the power fails: no connection is closed, no process says a last word."""
        self.pull_cable()
        self.kill_all()

    def find(self, *words: str, **variables: str) -> list[psutil.Process]:
        """Processes whose command line has all of these words and whose environment has these variables, the
        oldest first."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line, env = process.cmdline(), process.environ() if variables else {}
                if all(word in line for word in words) and all(
                    env.get(name) == value for name, value in variables.items()
                ):
                    found.append(process)
        return sorted(found, key=psutil.Process.create_time)


class Lab:
    """Nodes on one switch. All know each other by name."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.nodes: list[Node] = []
        self.switch = Namespace("switch")
        try:
            self.switch.network("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            self.switch.network("ip", "link", "set", "br0", "up")
            for rank in range(size):
                self.nodes.append(Node(rank, folder / f"node{rank}", self.switch))
            names = [f"{node.address} {node.name}" for node in self.nodes]
            for node in self.nodes:
                node.knows(*names)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, rank: int) -> Node:
        return self.nodes[rank]

    def mend(self) -> None:
        """The network as it was made."""
        for node in self.nodes:
            node.filter_nothing()
            node.unlimit_rate()
            node.plug_cable()

    def close(self) -> None:
        for namespace in (*self.nodes, self.switch):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                namespace.close()


def why_not(*tools: str) -> str | None:
    """The reason for which there can be no lab on this machine."""
    if os.geteuid() != 0:
        return "nodes in namespaces need root"
    missing = [tool for tool in ("ip", "nsenter", "unshare", *tools) if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (make system-packages)"
    try:
        probe = Namespace("probe")
    except OSError as error:
        return f"this machine allows no namespaces: {error}"
    try:
        probe.network("ip", "link", "add", "br0", "type", "bridge")
    except AssertionError as error:
        return f"this machine has no bridges: {error}"
    finally:
        probe.close()
    return None


@contextlib.contextmanager
def make_lab(size: int, folder: Path | None = None) -> Iterator[Lab]:
    """Everything of it is gone afterwards, but what lies in `folder`, if one was given."""
    own = Path(tempfile.mkdtemp(prefix="diag-lab-")) if folder is None else folder
    lab = Lab(own, size)
    try:
        yield lab
    finally:
        lab.close()
        if folder is None:
            shutil.rmtree(own, ignore_errors=True)
