"""The checks of this machine, one a file; a new one is a file and a line here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from diag.preflight import container_flags, gpus, launch, left_open, leftovers, machine, storage
from diag.preflight.launch_facts import LaunchFacts, launch_facts
from diag.preflight.line import Line

CHECKS: tuple[Callable[[LaunchFacts], Iterable[Line]], ...] = (
    machine.check_shared_memory,
    machine.check_open_files,
    machine.check_locked_memory,
    machine.check_host_memory,
    machine.check_processes,
    machine.check_ulimits,
    storage.check_disk,
    storage.check_caches,
    machine.check_stacks,
    gpus.check_gpus,
    gpus.check_npus,
    leftovers.check_leftovers,
    leftovers.check_shm_files,
    launch.check_launch,
    container_flags.check_container,
    left_open.check_left_open,
)


def check_machine(command: Sequence[str]) -> Iterator[Line]:
    """All of them on `command`, read once: no line can speak of another job than the next."""
    facts = launch_facts(command, os.environ, gpus.uuids_here(), gpus.npus_here())
    for check in CHECKS:
        yield from check(facts)
