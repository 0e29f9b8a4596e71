"""`deepspeed`: its hostfile, and what --include, --exclude, --num_nodes and --num_gpus leave of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diag.launch.launchers.command.options import number
from diag.launch.launchers.hostfile import Hostfile, parse_hostfile

DEFAULT_HOSTFILE = "/job/hostfile"  # launcher/runner.py: DLTS_HOSTFILE


@dataclass(frozen=True, slots=True)
class DeepSpeed:
    """`slots` are the ranks of each host that takes part, empty where no hostfile is there."""

    hosts: Hostfile | None
    slots: dict[str, int]
    processes: int | None
    processes_from: str
    nodes: int | None
    nodes_from: str


def read_deepspeed(options: Mapping[str, str], maybe: Callable[[str], str | None]) -> DeepSpeed:
    """Without a hostfile DeepSpeed takes this machine alone."""
    path = options.get("--hostfile") or DEFAULT_HOSTFILE
    text = maybe(path)
    hosts = parse_hostfile(text, path) if text is not None else None
    processes = number(options.get("--num_gpus", "").removeprefix("-1"), "--num_gpus")
    asked = number(options.get("--num_nodes", "").removeprefix("-1"), "--num_nodes")
    include = options.get("--include", "")
    slots = _filtered(hosts.slots, include, options.get("--exclude", ""), asked) if hosts else {}
    processes_from = "--num_gpus" if processes else ""
    if processes is None and slots:
        processes, processes_from = max(slots.values()), "--include" if include else "slots of the hostfile"
    elif processes is None and ":" in include:
        processes, processes_from = len(include.partition("@")[0].rpartition(":")[2].split(",")), "--include"
    nodes, nodes_from = asked, "--num_nodes" if asked else ""
    if slots and (nodes is None or nodes > len(slots)):
        nodes, nodes_from = len(slots), "--include" if include else "the hostfile"
    elif nodes is None and "@" in include:
        nodes, nodes_from = len(include.split("@")), "--include"
    return DeepSpeed(hosts, slots, processes, processes_from, nodes, nodes_from)


def _filtered(slots: Mapping[str, int], include: str, exclude: str, most: int | None) -> dict[str, int]:
    """deepspeed/launcher/runner.py, parse_resource_filter and main: in the file's order.

    >>> _filtered({"a": 8, "b": 8, "c": 8}, "", "b:0,1@c", None), _filtered({"a": 8, "b": 8}, "b:0,1", "", None)
    ({'a': 8, 'b': 6}, {'b': 2})
    """
    wanted, gone = _by_host(include), _by_host(exclude)
    left = {
        host: (len(wanted.get(host, ())) or count) - len(gone.get(host, ()))
        for host, count in slots.items()
        if (not include or host in wanted) and gone.get(host) != set()
    }
    return dict([(host, count) for host, count in left.items() if count > 0][:most])


def _by_host(text: str) -> dict[str, set[str]]:
    parts = (part.partition(":") for part in text.split("@") if part)
    return {host: set(filter(None, slots.split(","))) for host, _, slots in parts}
