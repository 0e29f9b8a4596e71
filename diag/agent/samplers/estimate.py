"""What a job that was just started or found should need in memory: computed on a thread of its own, never in
the job's way.

CMD may be any wrapper. What its first rank was started with says the same again, with all that wrappers
decided, and replaces it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from diag.agent.samplers.context import NodeContext, NodeSampler
from diag.model import Placement, Record
from diag.sources.host.file_rights import acting_as
from diag.sources.host.job_files import JobFiles
from diag.sources.host.process_tree import read_argv, read_environ


class EstimateSampler(NodeSampler):
    """Once for CMD, and once for what its first rank was started with."""

    name, what, sources = "estimate", "estimate", ("estimate",)

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node.reporter)
        self._node = node
        self._ranks: set[int] = set()

    @classmethod
    def of(cls, node: NodeContext) -> EstimateSampler:
        return cls(node)

    def start(self) -> None:
        estimate_watched(self._node.argv, self._node.pid, self.reporter.put, self.reporter.host)

    def rank_found(self, place: Placement, variables: dict[str, str]) -> None:
        self._ranks.add(place.rank)
        if len(self._ranks) == 1:
            estimate_watched(None, place.pid, self.reporter.put, self.reporter.host)


def estimate_watched(
    argv: Sequence[str] | None, pid: int, put: Callable[[Record], None], host: str = ""
) -> threading.Thread:
    """Hands `put` one record, or none where the command (None: that of the process) trains nothing. A file
    system that hangs holds up only this thread."""
    thread = threading.Thread(target=_work, args=(argv, pid, put, host), name="estimate", daemon=True)
    thread.start()
    return thread


def _work(argv: Sequence[str] | None, pid: int, put: Callable[[Record], None], host: str) -> None:
    from diag.launch.launchers.command import CommandError
    from diag.sources import estimate as source

    try:
        with JobFiles(pid) as files:
            folder, rights = Path(files.cwd()), files.rights
        environment = read_environ(pid)
        words = argv or read_argv(pid)
        from diag.preflight.estimate import estimate  # much to load where the command has ended

        # models and configurations are read by the names that the job has for them
        with acting_as(rights) as acted:
            if not acted or environment is None:
                return
            found = estimate(words, environment, folder=folder, with_advice=False)
    # not every command trains, nor names a model that is known; or it has ended
    except (CommandError, OSError):
        return
    except Exception:  # whatever fails in an estimate, the job is watched all the same
        return
    put(source.record(found.observation(), host))
