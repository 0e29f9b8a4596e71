"""Where the nodes of a job meet: address, port, number of nodes and this node's rank, as CMD's launcher would
read them.

Pure functions of CMD's words and of the environment. Each launcher reads other names: torchrun its flags and
PET_*, but neither MASTER_ADDR nor NNODES; ms-swift turns exactly these into torchrun's flags; a script of
one's own reads MASTER_ADDR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Rendezvous", "rendezvous", "split_environment"]

_DEFAULT_PORT = 29500  # torchrun's --master_port and, with MASTER_PORT unset, what people's scripts use
_C10D_PORT = 29400  # torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py: DEFAULT_PORT


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """`address` and `node_rank` are None where nothing tells them; `*_from` say who told ("--nnodes",
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
    bad: tuple[str, ...] = ()  # values that are no number where one is needed: "--nnodes two"


@dataclass(frozen=True, slots=True)
class _Names:
    """Flags of CMD first, then variables, in this order."""

    nodes: tuple[tuple[str, ...], tuple[str, ...]]
    address: tuple[tuple[str, ...], tuple[str, ...]]
    port: tuple[tuple[str, ...], tuple[str, ...]]
    rank: tuple[tuple[str, ...], tuple[str, ...]]


_TORCHRUN = _Names(
    (("--nnodes",), ("PET_NNODES",)),
    (("--master_addr", "--master-addr"), ("PET_MASTER_ADDR",)),
    (("--master_port", "--master-port"), ("PET_MASTER_PORT",)),
    (("--node_rank", "--node-rank"), ("PET_NODE_RANK",)),
)
_SWIFT = _Names(((), ("NNODES",)), ((), ("MASTER_ADDR",)), ((), ("MASTER_PORT",)), ((), ("NODE_RANK",)))
_ACCELERATE = _Names(
    (("--num_machines",), ()),
    (("--main_process_ip",), ()),
    (("--main_process_port",), ()),
    (("--machine_rank",), ()),
)
_DEEPSPEED = _Names(
    (("--num_nodes",), ()), (("--master_addr",), ()), (("--master_port",), ()), (("--node_rank",), ())
)
# A script that does the rendezvous itself, or a shell script that hands these on: the names that people and
# operators use.
_SCRIPT = _Names(
    (("--nnodes",), ("PET_NNODES", "NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    (("--master_addr", "--master-addr"), ("MASTER_ADDR", "PET_MASTER_ADDR")),
    (("--master_port", "--master-port"), ("MASTER_PORT", "PET_MASTER_PORT")),
    (("--node_rank", "--node-rank"), ("PET_NODE_RANK", "NODE_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX")),
)
_LAUNCHERS = {
    "torchrun": _TORCHRUN, "torch.distributed.run": _TORCHRUN, "torch.distributed.launch": _TORCHRUN, "swift": _SWIFT,
    "megatron": _SWIFT, "accelerate": _ACCELERATE, "accelerate.commands.launch": _ACCELERATE, "deepspeed": _DEEPSPEED,
    "deepspeed.launcher.runner": _DEEPSPEED,
}  # fmt: skip
_PLAIN = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK")


def split_environment(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """CMD without a leading `env A=B ...`, and the environment that it will have.

    >>> split_environment(["env", "-u", "X", "A=1", "torchrun", "t.py"], {"X": "0", "Y": "2"})
    (['torchrun', 't.py'], {'Y': '2', 'A': '1'})
    """
    words, env = list(command), dict(environment)
    if not words or words[0].rpartition("/")[2] != "env":
        return words, env
    words.pop(0)
    while words:
        word = words[0]
        if word in ("-u", "--unset") and len(words) > 1:
            env.pop(words[1], None)
            del words[:2]
        elif word in ("-i", "-", "--ignore-environment"):
            env.clear()
            del words[0]
        elif re.match(r"[A-Za-z_]\w*=", word):
            name, _, value = word.partition("=")
            env[name] = value
            del words[0]
        else:
            break
    return words, env


def rendezvous(command: Sequence[str], environment: Mapping[str, str]) -> Rendezvous:
    """What CMD's launcher will meet at. One node and no address where nothing says otherwise.

    >>> r = rendezvous(["torchrun", "--nnodes=2", "--master_addr", "a", "t.py", "--master_addr", "b"], {"NODE_RANK": "1"})
    >>> r.nodes, r.address, r.port, r.node_rank, r.ignored
    (2, 'a', 29500, 0, ('NODE_RANK',))
    """
    launcher, words = _launcher(command)
    names = _LAUNCHERS.get(launcher, _SCRIPT)
    bad: list[str] = []
    local_address = ""
    nodes_text, nodes_from = _find(words, environment, *names.nodes)
    address, address_from = _find(words, environment, *names.address)
    port_text, port_from = _find(words, environment, *names.port)
    rank_text, rank_from = _find(words, environment, *names.rank)
    nodes = (
        _number(nodes_text.rpartition(":")[2], nodes_from, bad) if nodes_text else None
    )  # "1:4": least and most
    port = _number(port_text, port_from, bad) if port_text else None
    rank = _number(rank_text, rank_from, bad) if rank_text else None
    backend = "static"
    if names is _TORCHRUN:
        backend = (
            _find(words, environment, ("--rdzv_backend", "--rdzv-backend"), ("PET_RDZV_BACKEND",))[0]
            or "static"
        )
        endpoint, endpoint_from = _find(
            words, environment, ("--rdzv_endpoint", "--rdzv-endpoint"), ("PET_RDZV_ENDPOINT",)
        )
        if endpoint:
            address, after = _split_endpoint(endpoint)
            address_from = port_from = endpoint_from
            port = (
                _number(after, endpoint_from, bad) if after else (_C10D_PORT if backend == "c10d" else None)
            )
        local_address = _find(words, environment, ("--local_addr", "--local-addr"), ("PET_LOCAL_ADDR",))[0]
        if not endpoint and backend != "static":
            address, address_from = "", ""
    if rank is None and backend == "static" and names in (_TORCHRUN, _SWIFT, _ACCELERATE):
        rank, rank_from = 0, "the default"  # all three take 0 where none is given
    ignored = tuple(
        name for name in _PLAIN if environment.get(name) and names in (_TORCHRUN, _ACCELERATE, _DEEPSPEED)
    )
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
        ignored=ignored,
        local_address=local_address,
        bad=tuple(bad),
    )


def _launcher(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The launcher in CMD, also behind srun, diag run and the like, and the words after it."""
    for index, word in enumerate(command):
        name = word.rpartition("/")[2]
        if name in _LAUNCHERS and (name == word or "/" in word):
            return name, command[index + 1 :]
    return "", command


def _find(
    words: Sequence[str], env: Mapping[str, str], flags: Sequence[str], variables: Sequence[str]
) -> tuple[str, str]:
    """The first of the flags (what comes after the script is the script's and stands later), else of the
    variables."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            if equals:
                return value, name
            if index + 1 < len(words):
                return words[index + 1], name
    for variable in variables:
        if env.get(variable):
            return env[variable], variable
    return "", ""


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
