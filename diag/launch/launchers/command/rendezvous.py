"""Where the nodes of a job meet: address, port, number of nodes and this node's rank, as CMD's launcher would
read them.

Each launcher reads other names: torchrun its flags and PET_*, but neither MASTER_ADDR nor NNODES; ms-swift
turns exactly these into torchrun's flags; a script of one's own reads MASTER_ADDR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diag.launch.launchers.command.options import tables

_DEFAULT_PORT = 29500  # torchrun's --master_port and, with MASTER_PORT unset, what people's scripts use
_C10D_PORT = 29400  # torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py: DEFAULT_PORT


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """`address` and `node_rank` are None where they are not known; `*_from` say where each is from ("--nnodes",
    "MASTER_ADDR").

    `backend` is static (node rank 0 listens), c10d (whichever machine owns the address listens) or another of
    torchrun's (etcd: a server of its own listens). `ignored` are variables that are set and that this
    launcher does not read.
    """

    launcher: str
    nodes: int
    address: str | None
    port: int
    node_rank: int | None
    backend: str = "static"
    nodes_from: str = ""
    address_from: str = ""
    port_from: str = ""
    rank_from: str = ""
    ignored: tuple[str, ...] = ()
    local_address: str = ""  # torchrun --local_addr: what this node calls itself, instead of its host's name
    run_id: str = ""  # torchrun --rdzv_id, which its ranks have as TORCHELASTIC_RUN_ID
    bad: tuple[str, ...] = ()  # values that are no number where one is needed: "--nnodes two"


_PLAIN = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK")


def flags_among(words: Sequence[str]) -> dict[str, str]:
    """The first of each flag by which people's own scripts learn where they meet.

    >>> flags_among(["python", "t.py", "--master-addr", "a", "--nnodes=2", "--lr", "1"])
    {'--master_addr': 'a', '--nnodes': '2'}
    """
    script = tables()["rendezvous"]["script"]
    wanted = {script[what][0] for what in ("nodes", "address", "port", "rank")}
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1)
        if name in wanted:
            found.setdefault(name, value if equals else after)
    return found


def rendezvous(
    launcher: str,
    options: Mapping[str, str],
    environment: Mapping[str, str],
    file: Mapping[str, str] | None = None,
    path: str = "",
) -> Rendezvous:
    """What `launcher` will meet at, given these options. `file` is what accelerate's file at `path` says,
    under the names of the flags. One node and no address where nothing says otherwise.

    >>> r = rendezvous("torchrun", {"--nnodes": "2", "--master_addr": "a"}, {"NODE_RANK": "1"})
    >>> r.nodes, r.address, r.port, r.node_rank, r.ignored
    (2, 'a', 29500, 0, ('NODE_RANK',))
    """

    def find(names: Sequence[str]) -> tuple[str, str]:
        for name in names:
            if options.get(name):
                return options[name], name
            if file and name in file:
                return file[name], f"{name} of {path}"
            if environment.get(name):
                return environment[name], name
        return "", ""

    def own(names: Sequence[str]) -> str:
        return find(names)[0] if launcher == "torchrun" else ""

    rows = tables()["rendezvous"]
    names = rows.get("swift" if launcher == "megatron" else launcher, rows["script"])
    bad: list[str] = []
    nodes_text, nodes_from = find(names["nodes"])
    address, address_from = find(names["address"])
    port_text, port_from = find(names["port"])
    rank_text, rank_from = find(names["rank"])
    # "1:4": least and most
    nodes = _number(nodes_text.rpartition(":")[2], nodes_from, bad) if nodes_text else None
    port = _number(port_text, port_from, bad) if port_text else None
    rank = _number(rank_text, rank_from, bad) if rank_text else None
    backend = "static"
    if launcher == "torchrun":
        backend = find(("--rdzv_backend", "PET_RDZV_BACKEND"))[0] or backend
        endpoint, endpoint_from = find(("--rdzv_endpoint", "PET_RDZV_ENDPOINT"))
        if endpoint:
            address, after = _split_endpoint(endpoint)
            address_from = port_from = endpoint_from
            default = _C10D_PORT if backend == "c10d" else None
            port = _number(after, endpoint_from, bad) if after else default
        elif backend != "static":
            address, address_from = "", ""
    if rank is None and backend == "static" and "default_rank" in names:
        rank, rank_from = names["default_rank"], "the default"
    reads_flags = launcher in ("torchrun", "accelerate", "deepspeed")
    return Rendezvous(
        launcher=launcher,
        nodes=max(nodes or 1, 1),
        address=address.strip("[]") or None,
        port=port or _DEFAULT_PORT,
        node_rank=rank,
        backend=backend,
        nodes_from=nodes_from,
        address_from=address_from,
        port_from=port_from,
        rank_from=rank_from,
        ignored=tuple(name for name in _PLAIN if reads_flags and environment.get(name)),
        local_address=own(("--local_addr", "PET_LOCAL_ADDR")),
        run_id=own(("--rdzv_id", "PET_RDZV_ID")),
        bad=tuple(bad),
    )


def _number(text: str, who: str, bad: list[str]) -> int | None:
    if text.isdecimal() and len(text) < 10:
        return int(text)
    bad.append(f"{who} {text}")
    return None


def _split_endpoint(endpoint: str) -> tuple[str, str]:
    """
    >>> _split_endpoint("[fd00::1]:29500"), _split_endpoint("node0"), _split_endpoint("node0:1")
    (('fd00::1', '29500'), ('node0', ''), ('node0', '1'))
    """
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::(.*))?", endpoint)
    if bracketed:
        return bracketed[1], bracketed[2] or ""
    host, colon, port = endpoint.rpartition(":")
    return (host, port) if colon else (endpoint, "")
