"""The hub's search for the ranks of its node: how often it looks, who is new, who is none, and a process without
ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from diag.agent.node_hub import NodeHub
from diag.agent.rank_finder import Found, RankFinder
from diag.sources.host import run as run_source
from diag.text.units import format_count, format_seconds

_SCAN_SECONDS = 1.0
_CALM_SCAN_SECONDS = 5.0  # every rank of this node is found and alive: a scan costs 1 ms a torch rank
_QUICK_SCAN_SECONDS = 0.25  # while ranks are still appearing
_QUICK_SCANS_FOR_SECONDS = 60.0
_LONE_SECONDS = 5.0


class RankHub(NodeHub, Protocol):
    def add_rank(self, found: Found) -> None: ...
    def withdraw_rank(self, rank: int) -> None: ...


@dataclass(eq=False)
class RankSearch:
    """Call `scan` every `period`, on the hub's thread: it hands the hub what `finder` finds. After `lone_seconds`
    without ranks it takes a process without any, unless the job `is_of_several` nodes, whose launchers wait for each
    other. `hooked`: processes that join a process group say so."""

    hub: RankHub
    finder: RankFinder
    talk: Callable[[str], None]
    lone_seconds: float
    is_of_several: Callable[[], bool]
    hooked: bool
    _since: float = field(default_factory=time.monotonic)
    _has_failed: bool = False
    _lone_at: float = 0.0  # when it is looked next whether there is a process without ranks

    def period(self) -> float:
        if not self._is_missing():
            return _CALM_SCAN_SECONDS
        quick = time.monotonic() - self._since < _QUICK_SCANS_FOR_SECONDS
        return _QUICK_SCAN_SECONDS if quick else _SCAN_SECONDS

    def _is_missing(self) -> bool:
        """Ranks of this node that were not found yet, or ended (an elastic launcher may start them anew); and one
        process without ranks may yet start some."""
        alive = self.hub.engine.job.alive_ranks()
        if not alive or not alive[0].distributed:
            return True
        place = alive[0].placement
        return len(alive) < (place.local_world_size or min(place.world_size, 4096))

    def scan(self) -> None:
        hub = self.hub
        found = self.finder.scan()
        for rank, pid in self.finder.withdrawn:
            self.talk(f"diag: pid {pid} is not a rank: processes that it started have joined a process group")
            hub.withdraw_rank(rank)
            hub.put(run_source.rank_withdrawn(rank, pid, hub.host))
        for one in found:
            hub.add_rank(one)
        for rank, pids in self.finder.shared:
            hub.put(run_source.rank_shared(rank, pids, hub.host))
        if found and self._has_failed:
            self._has_failed = False
            hub.put(run_source.works("ranks", host=hub.host))
        # A rank that this scan has found is not in the engine yet; under load it may be the first scan, and
        # late.
        none = not hub.engine.job.ranks and not hub.environment and not self.is_of_several()
        now = time.monotonic()
        waited = now - self._since
        if none and waited >= self.lone_seconds and now >= self._lone_at:
            self._lone_at = now + _LONE_SECONDS
            self._look_for_one(waited)

    def _look_for_one(self, waited: float) -> None:
        if self.finder.take_rank_alone():
            return  # the next scan finds them
        lone = self.finder.sole_process()
        if lone is not None:
            pid = lone.placement.pid
            why = (
                f"no ranks found below CMD after {format_seconds(waited)} (no RANK and LOCAL_RANK in any process, "
                "and none has joined a process group)"
            )
            if self.finder.drives_ray(pid):
                why = f"pid {pid} is the driver of a job on Ray, and none of its actors has joined a process group yet"
            self.talk(f"diag: {why}; watching pid {pid} as rank 0")
            self.hub.add_rank(lone)
            if not self.hooked and (spawned := self.finder.spawned(pid)):
                self._failed(
                    f"{format_count(spawned, 'process', 'processes')} below pid {pid} may be ranks "
                    "(multiprocessing started them, torch is in them): none has RANK and LOCAL_RANK, and diag's hook is not in them",
                    "start the job with `diag run -- CMD`, without --no-inject: each process then reports its rank",
                )
        elif self.finder.denied:
            self._failed(
                "the environment of the job's processes may not be read",
                "run diag as the user that owns the job",
            )

    def _failed(self, reason: str, remedy: str) -> None:
        self._has_failed = True
        self.hub.put(run_source.failed("ranks", reason, remedy, host=self.hub.host))
