"""`mpirun`, `mpiexec` and their kin: the hosts and the number of processes of their own command line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diag.launch.launchers.hostfile import Hosts, mpi_hosts

_FILES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")
_HOSTS = ("--host", "-host", "-H", "-hosts", "--hosts")
_PROCESSES = ("-np", "--np", "-n", "--n")
_SPREAD = ("-npernode", "--npernode", "-N", "-ppn", "-perhost", "--map-by", "-map-by", "-bynode", "--bynode")
_DEFAULT = "OMPI_MCA_orte_default_hostfile"


@dataclass(frozen=True, slots=True)
class Mpirun:
    """`name` is the program's, `is_spread` whether ranks go to nodes in another way than one node after the
    other. `not_read` is a flag or variable with the hosts or the file that could not be read."""

    name: str
    hosts: Hosts = ()
    hosts_from: str = ""
    processes: int | None = None
    is_spread: bool = False
    not_read: tuple[str, str] | None = None

    def used(self, hosts: Hosts) -> Hosts:
        """Nodes are filled one after the other. A host without a number of slots has as many as it has cores,
        which is not known here; then all hosts are taken, as far as there are processes."""
        if self.is_spread or self.processes is None or any(slots is None for _, slots in hosts):
            return hosts[: self.processes]
        room = itertools.accumulate(slots or 0 for _, slots in hosts)
        return hosts[: sum(before < self.processes for before in (0, *list(room)[:-1]))]

    @property
    def ranks(self) -> int | None:
        """Of each node, where all have as many; None where that is not known."""
        slots = {slots for _, slots in self.used(self.hosts)}
        ranks = next(iter(slots)) if len(slots) == 1 and not self.is_spread else None
        return ranks if ranks and self.processes == ranks * len(self.used(self.hosts)) else None


def read_mpirun(
    name: str, words: Sequence[str], environment: Mapping[str, str], maybe: Callable[[str], str | None]
) -> Mpirun:
    """
    >>> found = read_mpirun("mpirun", ["-np", "16", "-H", "a:8,b:8,c:8"], {}, lambda path: None)
    >>> found.used(found.hosts), found.ranks
    ((('a', 8), ('b', 8)), 8)
    """
    processes = next(
        (
            int(after) or None
            for word, after in itertools.pairwise(words)
            if word in _PROCESSES and after.isdecimal() and len(after) < 10
        ),
        None,
    )
    is_spread = any(word.startswith(_SPREAD) for word in words)
    flag, value = next(
        ((word, after) for word, after in itertools.pairwise(words) if word in _HOSTS + _FILES), ("", "")
    )
    if not flag:
        # kubeflow/mpi-operator 0.4: /etc/mpi/hostfile
        flag, value = _DEFAULT, environment.get(_DEFAULT, "")
    # Open MPI's `a:2,b:2` and `a,a,b`: a host has a slot for each time that it is named
    text = value.replace(",", "\n") if flag in _HOSTS else maybe(value) if value else ""
    hosts = mpi_hosts(text or "")
    who = f"{flag} {value}" if flag in _FILES else flag
    not_read = (flag, value) if value and not hosts else None
    return Mpirun(name, hosts, who if hosts else "", processes, is_spread, not_read)
