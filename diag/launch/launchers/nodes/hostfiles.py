"""Files and flags that list the hosts of a job: mpirun's, DeepSpeed's, those of PBS and LSF, and the setting
`nodes`."""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import re
from collections.abc import Sequence

from diag.launch.launchers import Environment
from diag.launch.launchers.command import Command, ReadText
from diag.launch.launchers.command.starters import DEFAULT_HOSTFILE
from diag.launch.launchers.hostlist import MOST_HOSTS, BadHostlist, Hosts, expand_hostlist, is_host, mpi_hosts
from diag.launch.launchers.nodes.facts import Engine, first, shown

_LOWEST_PORT = 1024  # below it a number behind a colon in a hostfile is MPICH's number of processes: no hub listens there


def given_hosts(text: str, read_text: ReadText) -> tuple[Hosts, tuple[str, ...]]:
    """The setting `nodes`: "host[:port],..." (brackets as Slurm writes them are expanded) or "@FILE" with a
    host on each line.

    >>> given_hosts("gpu[1-2]:9095,[fd00::1]:9000,fd00::2", lambda path: None)
    ((('gpu1', 9095), ('gpu2', 9095), ('fd00::1', 9000), ('fd00::2', None)), ())
    """
    if not text.startswith("@"):
        return _list(text.split(",") if "[" not in text else _apart(text), "nodes", text)
    read = read_text(text[1:])
    if read is None:
        return (), (f"nodes={text[:120]!r}: no such file can be read",)
    lines = [line.partition("#")[0].split() for line in read.splitlines()]
    hosts, bad = _list([words[0] for words in lines if words], text, read.strip())
    return tuple((host, port if port is None or port >= _LOWEST_PORT else None) for host, port in hosts), bad


def _apart(text: str) -> list[str]:
    """At the commas outside of brackets."""
    return re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\]|[\[\]])+", text)


def _list(entries: Sequence[str], name: str, text: str) -> tuple[Hosts, tuple[str, ...]]:
    hosts: list[tuple[str, int | None]] = []
    for entry in filter(None, map(str.strip, entries)):
        host, port = _split_port(entry)
        try:
            names = expand_hostlist(host) if "[" in host else (host,)
        except BadHostlist:
            return (), (shown(name, text),)
        many = len(hosts) + len(names) > MOST_HOSTS
        if many or int(port or 0) > 65535 or not all(map(is_host, names)):
            return (), (shown(name, text),)
        hosts.extend((one, int(port) if port else None) for one in names)
    if len({host for host, _ in hosts}) == len(hosts) or len(set(hosts)) == len(hosts):
        return tuple(hosts), ()
    return (), (f"{shown(name, text)} names a host twice",)


def _split_port(entry: str) -> tuple[str, str]:
    """
    >>> _split_port("[fd00::1]:9000"), _split_port("fd00::2"), _split_port("gpu[1-2]:9095")
    (('fd00::1', '9000'), ('fd00::2', ''), ('gpu[1-2]', '9095'))
    """
    found = re.fullmatch(r"\[([0-9A-Fa-f:.%a-z]{2,60})\](?::(\d{1,5}))?", entry)
    if found is not None and ":" in found[1]:
        return found[1], found[2] or ""
    host, colon, port = entry.rpartition(":")
    if not colon or ":" in host.partition("[")[0] or not re.fullmatch(r"[0-9]{1,5}", port):
        return entry, ""
    return host, port


def deepspeed(command: Command) -> Engine:
    """The hosts that deepspeed starts ranks on, in the order of its hostfile; without a file this machine
    alone."""
    file, path = command.hosts, command.options.get("--hostfile") or DEFAULT_HOSTFILE
    if file is None:
        if command.options.get("--num_nodes", "") not in ("", "-1", "1"):
            # DeepSpeed asks for the file then: it is not seen from here
            return Engine("deepspeed", bad=(shown("--hostfile", path),))
        return Engine("deepspeed", count=1, count_from=f"no {path}")
    hosts = tuple(command.slots)
    if not hosts or file.bad:
        return Engine("deepspeed", bad=(shown(path, file.bad or ", ".join(file.slots)),))
    return Engine("deepspeed", count=len(hosts), count_from=path, hosts=hosts, hosts_from=path)


def world_info(words: Sequence[str]) -> tuple[str, ...]:
    """The hosts in the command line of deepspeed.launcher.launch, one on each node: --world_info=BASE64 of
    {host: [GPUs]}."""
    text = ""
    for word, after in itertools.pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name == "--world_info":
            text = value if equals else after
            break
    try:
        ranks = json.loads(base64.urlsafe_b64decode(text[: 1 << 20].encode()))
    except (ValueError, binascii.Error, RecursionError):
        return ()
    hosts = tuple(str(host) for host in ranks) if isinstance(ranks, dict) else ()
    return hosts if len(hosts) <= MOST_HOSTS and all(is_host(host) for host in hosts) else ()


def allocation(env: Environment, read_text: ReadText) -> tuple[Hosts, str, str, tuple[str, ...]]:
    """What PBS and LSF allocated: the hosts with their slots, the variable they are from, the job's id, and what cannot be
    read. How many of the hosts CMD uses is not known. PBS: PBS_NODEFILE has a line for each slot. LSF 10.1: so
    has LSB_DJOB_HOSTFILE, LSB_HOSTS a word for each, and LSB_MCPU_HOSTS a host and its number in turn."""
    job, _ = first(env, "PBS_JOBID", "LSB_JOBID")
    path, who = first(env, "PBS_NODEFILE", "LSB_DJOB_HOSTFILE")
    text = read_text(path) if path else None
    if text is None and env.get("LSB_HOSTS"):
        text, who = env["LSB_HOSTS"].replace(" ", "\n"), "LSB_HOSTS"
    if text is None and env.get("LSB_MCPU_HOSTS"):
        words = env["LSB_MCPU_HOSTS"].split()
        text, who = (
            "\n".join(f"{host} slots={slots}" for host, slots in zip(words[::2], words[1::2], strict=False)),
            "LSB_MCPU_HOSTS",
        )
    if text is None:
        return (), "", job, (shown(who, path),) if path else ()
    hosts = mpi_hosts(text)
    return hosts, who if hosts else "", job, () if hosts else (shown(who, text.strip()),)
