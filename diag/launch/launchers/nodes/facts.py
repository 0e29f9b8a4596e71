"""What is known of a job's nodes, and what one engine says of them."""

from __future__ import annotations

from dataclasses import dataclass

from diag.launch.launchers import Environment


@dataclass(frozen=True, slots=True)
class JobNodes:
    """The nodes of one job by this node's environment and command. `hosts[i]` is an address or name at
    which node i can be reached, "" where it is not known; hosts is empty where no list is known. `launcher`
    is the engine that started this node's part (slurm, jobset ...), else CMD's own launcher; `job` is that
    engine's name of the job. `origins` is where each is from: ("count", "NNODES"), ("hosts", "SLURM_JOB_NODELIST");
    `bad` what cannot be read: "SLURM_JOB_NODELIST='gpu[1-'".
    """

    count: int  # 1 for a job of one node
    node_rank: int | None  # None: not known
    address: str | None  # where the nodes meet: host of node 0
    port: int | None  # its port: training's own rendezvous, not diag's
    hosts: tuple[str, ...] = ()
    hub_ports: tuple[int | None, ...] = ()  # only where a host list gave host:port
    launcher: str = ""
    job: str = ""
    origins: tuple[tuple[str, str], ...] = ()
    bad: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """What the engine that started this node's part says; each value with the variable it is from."""

    launcher: str
    job: str = ""
    count: int | None = None
    count_from: str = ""
    node_rank: int | None = None
    rank_from: str = ""
    hosts: tuple[str, ...] = ()
    hosts_from: str = ""
    bad: tuple[str, ...] = ()


def number(env: Environment, *names: str) -> tuple[int | None, str]:
    """The first of these variables that is a number, and its name.

    >>> number({"A": "x", "B": "2"}, "A", "B")
    (2, 'B')
    """
    for name in names:
        value = env.get(name, "")
        if value.isascii() and value.isdecimal() and len(value) < 10:
            return int(value), name
    return None, ""


def first(env: Environment, *names: str) -> tuple[str, str]:
    for name in names:
        if env.get(name):
            return env[name], name
    return "", ""


def shown(name: str, value: str) -> str:
    """How a value that cannot be read is shown: long ones are cut."""
    return f"{name}={value[:120]!r}"


def same_host(one: str, other: str) -> bool:
    """Whether two names are of one host, as far as names show it: gpu1 and gpu1.cluster are, two addresses only
    if equal.

    >>> same_host("gpu1", "gpu1.cluster"), same_host("10.0.0.1", "10.0.0.2"), same_host("gpu1.a", "gpu1.b")
    (True, False, False)
    """
    one, other = one.lower().rstrip("."), other.lower().rstrip(".")
    if one == other:
        return True
    short, long = sorted((one, other), key=len)
    return "." not in short and ":" not in short and long.startswith(short + ".")
