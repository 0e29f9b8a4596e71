"""Which checkpoints on disk are this job's, which of them are not whole for good, and which one to go on
from. Judges no cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from diag.detectors.checkpoint.lines import QuotedLines
from diag.detectors.contract import Detector
from diag.model.observations import CheckpointFolder, CheckpointsSeen, LogLine, PlainLines, QuietLines
from diag.state.saves import Save
from diag.state.view import JobView

_PATIENCE_SECONDS = 300.0  # without a change: the job lives, and may still write
_ASYNC_PATIENCE_SECONDS = 3600.0
_BEFORE_START_SECONDS = 60.0  # clocks of file servers differ


@dataclass(frozen=True, slots=True)
class Broken:
    """A checkpoint that is not whole and will not become so. `what` is wrong; `sure`: by its own files, not
    by comparison."""

    folder: CheckpointFolder
    what: str
    since: float
    sure: bool = True


class Folders:
    """Handed all that is seen on disk; asked by the detectors of this package."""

    def __init__(self) -> None:
        self._changed: dict[str, tuple[CheckpointFolder, float]] = {}
        self._ours: set[str] = set()
        self._written: set[str] = set()  # roots in which this job made a folder
        # by root: what its tracker names, whether that changed
        self._trackers: dict[str, tuple[tuple[str, str] | None, bool]] = {}
        self._looked: dict[str, float] = {}  # by root: when it was last read
        self.loads: dict[str, tuple[float, CheckpointsSeen]] = {}

    def observe(self, at: float, fact: CheckpointsSeen) -> None:
        if fact.role == "load":
            self.loads.setdefault(fact.root, (at, fact))
            return
        self._looked[fact.root] = at
        first = fact.root not in self._trackers
        before, changed = self._trackers.get(fact.root, (fact.tracker, False))
        self._trackers[fact.root] = (fact.tracker, changed or fact.tracker != before)
        for folder in fact.folders:
            known = self._changed.get(folder.path)
            if known is None or known[0] != folder:
                if not first:
                    self._ours.add(folder.path)
                    self._written.add(_root_of(folder.path))
                self._changed[folder.path] = (folder, at)
        there = {folder.path for folder in fact.folders}
        for path in [path for path in self._changed if _root_of(path) == fact.root and path not in there]:
            del self._changed[path]  # rotated away
            self._ours.discard(path)

    def broken(self, now: float, job: JobView) -> Iterator[Broken]:
        """This job's own, oldest first."""
        for folder, changed in self._changed.values():
            if not self._is_ours(folder, job) or not self._is_settled(folder, changed, now, job):
                continue
            what = self._what(folder, job)
            if what:
                yield Broken(folder, what, changed, sure=bool(folder.missing or folder.damaged))

    def whole(self, besides: CheckpointFolder | None = None) -> CheckpointFolder | None:
        """The newest in the same folder that misses nothing."""
        root = _root_of(besides.path) if besides is not None else None
        whole = [
            folder
            for folder, _ in self._changed.values()
            if (besides is None or (folder.path != besides.path and _root_of(folder.path) == root))
            and folder.listed
            and not (folder.missing or folder.damaged)
            and folder.size_bytes
            and folder.kind != "unknown"
        ]
        return max(whole, key=lambda folder: (folder.iteration or -1, folder.changed_at), default=None)

    def tracker(self, root: str) -> tuple[str, str] | None:
        """The tracker of a folder: its file, and what it names."""
        return self._trackers.get(root, (None, False))[0]

    def wrote_tracker(self, root: str) -> bool:
        """Whether this job did, as far as it was seen."""
        return self._trackers[root][1] or root in self._written

    def roots(self) -> list[str]:
        return list(self._trackers)

    def _is_ours(self, folder: CheckpointFolder, job: JobView) -> bool:
        return (
            folder.path in self._ours
            or folder.changed_at >= (job.run.started_at or 0.0) - _BEFORE_START_SECONDS
        )

    def _is_settled(self, folder: CheckpointFolder, changed: float, now: float, job: JobView) -> bool:
        """Whoever wrote it is gone, or has left it alone for long. ms-swift writes its tracker before an
        asynchronous save begins."""
        if job.returncode is not None or (job.ranks and not job.alive_ranks()):
            # What was seen while they lived may have been half of what they wrote.
            last = max((rank.exited_at or 0.0 for rank in job.ranks.values()), default=0.0)
            looked = self._looked.get(_root_of(folder.path), 0.0) >= last
            return looked and (job.returncode != 0 or not _spans_nodes(job))
        if job.phase == "ckpt_save":
            return False
        pending = job.saves.log.unwritten
        if pending is not None and (pending.iteration == folder.iteration or folder.iteration is None):
            return now - changed >= _ASYNC_PATIENCE_SECONDS
        longest = max((save.seconds or 0.0 for save in job.saves.log.finished), default=0.0)
        return now - changed >= max(_PATIENCE_SECONDS, 3 * longest)

    def _what(self, folder: CheckpointFolder, job: JobView) -> str:
        parts = []
        if folder.missing:
            parts.append("missing " + ", ".join(folder.missing))
        if folder.damaged:
            parts.append("damaged " + ", ".join(folder.damaged))
        if parts or not folder.listed:
            return "; ".join(parts)
        save = cut_off_save(folder, job)
        before = self.whole(folder)
        if save is None or before is None or folder.files >= before.files:
            return ""
        return f"{folder.files} files where {name_of(before)} has {before.files}"


class FolderDetector(Detector):
    """One that finds folders, and lines of the log about them."""

    listens = (CheckpointsSeen, LogLine, PlainLines, QuietLines)

    def __init__(self) -> None:
        self._folders = Folders()
        self._lines = QuotedLines(self.name)

    def observe(self, at: float, fact: CheckpointsSeen | LogLine | PlainLines | QuietLines) -> None:
        if isinstance(fact, CheckpointsSeen):
            self._folders.observe(at, fact)
        else:
            self._lines.observe(at, fact)


def cut_off_save(folder: CheckpointFolder, job: JobView) -> Save | None:
    """The save of this checkpoint, where the job ended in it."""
    for save in job.saves.log.saves:
        unfinished = save.cut_off or (job.saves.log.asynchronous and save.written is None)
        if unfinished and (
            save.path == folder.path or (folder.iteration is not None and save.iteration == folder.iteration)
        ):
            return save
    return None


def pointed_at(root: str, tracker: tuple[str, str]) -> str | None:
    """The folder that a tracker names; None for what names none ("release" too is a folder)."""
    file, name = tracker
    if file == "latest_checkpointed_iteration.txt" and name.isdigit() and len(name) < 10:
        name = f"iter_{int(name):07d}"
    if not name or "/" in name or len(name) > 200:
        return None
    return f"{root.rstrip('/')}/{name}"


def name_of(folder: CheckpointFolder) -> str:
    return PurePosixPath(folder.path).name


def _root_of(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _spans_nodes(job: JobView) -> bool:
    return job.world_size > len(job.ranks) > 0
