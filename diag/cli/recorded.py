"""A view of evidence on disk: the same page over what was recorded, with no process to ask for more."""

from __future__ import annotations

import argparse
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import diag
from diag.engine.engine import Engine
from diag.launch.service_discovery import Target
from diag.model import Placement
from diag.outputs.http.daemon_thread import in_daemon_thread
from diag.outputs.view.view import ClusterView, Counters, FlameWanted
from diag.text.errors import DiagError


class NoOtherNodes(ClusterView):
    """Of one that has joined no other hub."""

    takes_digests = False


class RecordedView:
    """A HubView. `paths` is what the engine read: flame graphs are drawn from it again."""

    def __init__(
        self,
        engine: Engine,
        paths: Sequence[Path],
        *,
        beyond_loopback: bool = False,
        token: str | None = None,
    ) -> None:
        self.engine = engine
        self.lock = threading.RLock()
        self.cluster = NoOtherNodes()
        self.run_id = "stdin" if str(paths[0]) == "-" else paths[0].resolve().name or str(paths[0])
        self.recorded = ", ".join(map(str, paths))
        self.version = diag.__version__
        self.started_at = engine.job.run.started_at or engine.now
        self.counters = Counters(records_total=engine.records, log_lines_total=engine.job.log.lines)
        self.token = token or (secrets.token_urlsafe(24) if beyond_loopback else None)
        self.bound_beyond_loopback = beyond_loopback
        self._paths = paths

    def targets(self) -> Sequence[Target]:
        return ()

    async def flame(self, place: Placement, wanted: FlameWanted) -> bytes:
        from diag.cli.flame import recorded
        from diag.engine.replay import when_read_again

        if wanted.native:
            raise DiagError("recorded stacks have no native frames")
        for path in self._paths:
            if why := when_read_again(path):
                raise DiagError(
                    why,
                    hint="a flame graph is drawn from evidence that is read again; give a file or a folder",
                )
        args = argparse.Namespace(children=wanted.children, format=wanted.form, native=False)
        return await in_daemon_thread(lambda: recorded(self._paths, args, place.rank))

    async def dump(self, deadline: float, *, native: bool = False, scope: str = "job") -> dict[str, Any]:
        raise DiagError(
            "recorded evidence: there is no live process to read",
            hint="its stacks are on the page, and in `diag replay`",
        )
