"""What the network checks go by: CMD, its environment as NCCL will see it, where its nodes meet, the IP
interfaces here."""

from __future__ import annotations

import ipaddress
import os
import pwd
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diag.knowledge.nccl_filters import parse_conf
from diag.preflight.launch_facts import LaunchFacts, launch_facts, version_beside
from diag.preflight.nccl_interfaces import Address, NetworkInterface


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan(LaunchFacts):
    """`nccl_environment` is that of CMD with what nccl.conf adds; `origins` has the file of each variable that comes
    from one. `within` is docker, podman, kubernetes or "": what made the container of diag itself."""

    nccl_environment: Mapping[str, str]
    origins: Mapping[str, Path] = field(default_factory=dict)
    nccl_version: tuple[int, ...] | None = None
    interfaces: tuple[NetworkInterface, ...] = ()
    rdma: bool | None = None  # whether the kernel has RDMA devices; None where that may not be seen
    wait_seconds: float = 0.0  # 0: node 0 does not listen, the others try once
    clock: Callable[[], float] = time.time  # that the others are sent
    within: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        return self.nccl_environment

    def setting_of(self, variable: str) -> str:
        """ "NCCL_DEBUG=INFO (/etc/nccl.conf)": the variable, its value, and where it was set if not in the environment."""
        origin = f" ({self.origins[variable]})" if variable in self.origins else ""
        return f"{variable}={self.environment[variable]}{origin}"


def make_plan(
    command: Sequence[str],
    environment: Mapping[str, str],
    wait_seconds: float,
    clock: Callable[[], float] = time.time,
) -> LaunchPlan:
    facts = launch_facts(command, environment)
    env = facts.environment
    inside = facts.container is not None  # with a NCCL and files of its own, which the image has
    version = None if inside else _nccl_version(facts.command.line, env)
    old = version is not None and version < (2, 23)  # it knows no NCCL_CONF_FILE
    names = {name: value for name, value in env.items() if not old or name != "NCCL_CONF_FILE"}
    merged, origins = effective(env, [] if inside else read_conf_files(names))
    return LaunchPlan(
        facts.command,
        facts.inherited,
        nccl_environment=merged,
        origins=origins,
        nccl_version=version,
        interfaces=interfaces_here(),
        rdma=has_entries(Path("/sys/class/infiniband")),
        wait_seconds=wait_seconds,
        clock=clock,
        within=container_here(environment),
    )


def container_here(environment: Mapping[str, str], root: Path = Path("/")) -> str:
    """What made the container that this process is in, by the marks that each leaves; "" where none is seen."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    marks = {"docker": ".dockerenv", "podman": "run/.containerenv"}
    return next((name for name, mark in marks.items() if (root / mark).exists()), "")


def has_entries(folder: Path) -> bool | None:
    """None where that may not be read."""
    try:
        return any(folder.iterdir())
    except FileNotFoundError:
        return False if folder.parent.is_dir() else None
    except OSError:
        return None


def interfaces_here() -> tuple[NetworkInterface, ...]:
    """In the kernel's order, which is the one that NCCL goes by."""
    import psutil

    states = psutil.net_if_stats()
    found = []
    for name, places in psutil.net_if_addrs().items():
        flags = states[name].flags.split(",") if name in states else []
        addresses = tuple(
            Address(place.address.partition("%")[0], _prefix(place.netmask, place.family))
            for place in places
            if place.family in (socket.AF_INET, socket.AF_INET6)
        )
        found.append(NetworkInterface(name, "up" in flags, "running" in flags, addresses))
    return tuple(found)


def _prefix(netmask: str | None, family: int) -> int:
    whole = 32 if family == socket.AF_INET else 128
    if not netmask:  # a point-to-point link
        return whole
    try:
        return bin(int(ipaddress.ip_address(netmask))).count("1")
    except ValueError:
        return whole


def is_own(address: str) -> bool:
    """Whether it is an address of this machine, by binding to it on any free port for a moment."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            return True
    except OSError:
        return False


def route_to(address: str) -> str:
    """The address that this machine would talk to it from; "" where there is no route. Sends nothing: a UDP
    socket."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _nccl_version(words: Sequence[str], env: Mapping[str, str]) -> tuple[int, ...] | None:
    program = shutil.which(words[0], path=env.get("PATH")) if words else None
    return None if program is None else version_beside(Path(program), "nvidia_nccl_cu*")


_MOST_BYTES = 1 << 20


def read_conf_files(
    environment: Mapping[str, str], root: Path = Path("/"), home: Path | None = None
) -> list[tuple[Path, dict[str, str]]]:
    """The nccl.conf files that are there, the stronger first, with what they hold. NCCL before 2.23 does not know
    NCCL_CONF_FILE.

    As src/misc/param.cc reads them: a line is NAME=VALUE, taken as it is (no quotes, no blanks cut off), `#` at
    its very start is a comment, other lines are passed over (seen so with NCCL 2.27.5 and 2.32.3); what is set
    already is not overwritten, so the environment wins, then the user's file.
    """
    files = []
    if environment.get("NCCL_CONF_FILE"):
        files.append(Path(environment["NCCL_CONF_FILE"]))
    else:
        folder = home if home is not None else _home()
        if folder is not None:
            files.append(folder / ".nccl.conf")
    files.append(root / "etc/nccl.conf")
    found = []
    for path in files:
        try:
            if not path.is_file():  # a FIFO of that name must not hold us up
                continue
            with path.open("rb") as file:
                found.append((path, parse_conf(file.read(_MOST_BYTES).decode(errors="replace"))))
        except OSError:
            pass  # NCCL does not report a file that it cannot open, either
    return found


def effective(
    environment: Mapping[str, str], files: list[tuple[Path, dict[str, str]]]
) -> tuple[dict[str, str], dict[str, Path]]:
    """The environment as NCCL sees it, and the file that each variable which is not in the real one came
    from."""
    merged, origins = dict(environment), {}
    for path, values in files:
        for name, value in values.items():
            if name not in merged:
                merged[name] = value
                origins[name] = path
    return merged, origins


def _home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)  # as NCCL: not $HOME
    except KeyError:
        return None
