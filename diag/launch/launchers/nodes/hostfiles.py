"""Files and flags that list the hosts of a job: mpirun's, DeepSpeed's, those of PBS and LSF, and the setting
`nodes`."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
from collections.abc import Sequence

from diag.launch.launchers.hostfile import parse_hostfile
from diag.launch.launchers.hostlist import BadHostlist, expand_hostlist
from diag.launch.launchers.nodes.facts import MOST_NODES, Engine, Environment, Hosts, ReadText, first, shown

__all__ = ["allocation", "deepspeed", "given_hosts", "mpi_hosts", "world_info"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
# Open MPI 4.1: `node slots=4 max_slots=8`, also `slots = 4`; MPICH 4 and Intel MPI: `node:4`; "#" starts a
# comment
_SLOTS = re.compile(r"\bslots\s{0,9}=\s{0,9}(\d{1,6})")
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


def _is_host(text: str) -> bool:
    """A name, or an address, also of IPv6 with its zone. No option: ssh and the like are handed these."""
    if ":" not in text:
        return _NAME.fullmatch(text) is not None
    try:
        return len(text) < 64 and bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def _list(entries: Sequence[str], name: str, text: str) -> tuple[Hosts, tuple[str, ...]]:
    hosts: list[tuple[str, int | None]] = []
    for entry in entries:
        word = entry.strip()
        if not word:
            continue
        found = (
            re.fullmatch(r"\[([0-9A-Fa-f:.%a-z]{2,60})\](?::(\d{1,5}))?", word)
            if word.startswith("[")
            else None
        )
        names: tuple[str, ...]
        if found is not None and ":" in found[1]:
            names, port = (found[1],), found[2] or ""
        else:
            host, colon, after = word.rpartition(":")
            if not colon or ":" in host.partition("[")[0] or not re.fullmatch(r"[0-9]{1,5}", after):
                host, after = word, ""
            try:
                names, port = (expand_hostlist(host) if "[" in host else (host,)), after
            except BadHostlist:
                return (), (shown(name, text),)
        if (
            not all(_is_host(one) for one in names)
            or len(hosts) + len(names) > MOST_NODES
            or int(port or 0) > 65535
        ):
            return (), (shown(name, text),)
        hosts.extend((one, int(port) if port else None) for one in names)
    if len({host for host, _ in hosts}) == len(hosts) or len(set(hosts)) == len(hosts):
        return tuple(hosts), ()
    return (), (f"{shown(name, text)} names a host twice",)


def mpi_hosts(text: str) -> Hosts:
    """The hosts of an MPI hostfile with their slots; a host that stands on several lines has one slot for
    each."""
    slots: dict[str, int | None] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].strip()[:400]
        host, _, behind = words.partition(" ")
        name, colon, number = host.rpartition(":")
        count = _SLOTS.search(behind)
        size = int(count[1]) if count else None
        if colon and number.isdecimal() and ":" not in name:
            host, size = name, int(number[:6])
        host = host.rpartition("@")[2]  # Open MPI takes user@host
        if not _is_host(host):
            continue
        if host in slots:
            size = (slots[host] or 1) + (size or 1)
        if len(slots) < MOST_NODES:
            slots[host] = size
    return tuple(slots.items())


def deepspeed(words: Sequence[str], read_text: ReadText) -> Engine:
    """deepspeed/launcher/runner.py at 2d991ba: the hostfile's hosts, less what --include, --exclude and
    --num_nodes leave out, in the file's order. Without a file this machine alone."""
    flags = _flags(words, ("--hostfile", "-H", "--include", "-i", "--exclude", "-e", "--num_nodes"))
    path = flags.get("--hostfile") or flags.get("-H") or "/job/hostfile"
    text = read_text(path)
    top = flags.get("--num_nodes", "")
    if text is None and top not in ("", "-1", "1"):
        return Engine(
            "deepspeed", bad=(shown("--hostfile", path),)
        )  # DeepSpeed asks for the file then: it is not seen from here
    if text is None:
        return Engine("deepspeed", count=1, count_from=f"no {path}")
    file = parse_hostfile(text, path)
    hosts = tuple(host for host, slots in file.slots.items() if slots)
    include, exclude = (
        flags.get("--include") or flags.get("-i", ""),
        flags.get("--exclude") or flags.get("-e", ""),
    )
    if include:
        wanted = {part.partition(":")[0] for part in include.split("@")}
        hosts = tuple(host for host in hosts if host in wanted)
    if exclude:
        gone = {
            name for name, _, slots in (part.partition(":") for part in exclude.split("@"))
            if not slots or len(set(slots.split(","))) >= file.slots.get(name, 0)
        }  # fmt: skip
        hosts = tuple(host for host in hosts if host not in gone)
    if top.isdecimal() and 0 < int(top[:6]) < len(hosts):
        hosts = hosts[: int(top[:6])]
    bad = (shown(path, file.bad),) if file.bad else ()
    if not hosts or bad:
        return Engine("deepspeed", bad=bad or (shown(path, text.strip()),))
    return Engine("deepspeed", count=len(hosts), count_from=path, hosts=hosts, hosts_from=path)


def world_info(words: Sequence[str]) -> tuple[str, ...]:
    """The hosts in the command line of deepspeed.launcher.launch, one on each node: --world_info=BASE64 of
    {host: [GPUs]}."""
    text = _flags(words, ("--world_info",)).get("--world_info", "")
    try:
        told = json.loads(base64.urlsafe_b64decode(text[: 1 << 20].encode()))
    except (ValueError, binascii.Error, RecursionError):
        return ()
    hosts = tuple(str(host) for host in told) if isinstance(told, dict) else ()
    return hosts if len(hosts) <= MOST_NODES and all(_is_host(host) for host in hosts) else ()


def allocation(env: Environment, read_text: ReadText) -> tuple[Hosts, str, str, tuple[str, ...]]:
    """What PBS and LSF allocated: the hosts with their slots, who told, the job's id, and what cannot be
    read. How many of the hosts CMD uses is not told. PBS: PBS_NODEFILE has a line for each slot. LSF 10.1: so
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


def _flags(words: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The first value of each of these flags."""
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name in names and name not in found:
            found[name] = value if equals else after
    return found
