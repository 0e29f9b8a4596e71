"""What is read of a job's checkpoints once a node: the folders that it saves to and begins from, and the
space on their disks.

A look at a network file system that hangs is left alone in its own thread, and none is begun beside it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from diag.knowledge.checkpoint_args import NamedPath, named_paths, save_root
from diag.model import Payload, Record
from diag.sources.host import run as run_source
from diag.sources.host.job_files import Files, JobFiles
from diag.sources.storage import checkpoint, disk

__all__ = ["CheckpointWatch", "WatchedJob"]

_SECONDS = 10.0
_SAVING_SECONDS = 2.0
_COST_RATIO = 0.01  # of a core; and of the wall clock ten times that, for a server that is slow to answer
_WALL_RATIO = 0.1
_LONGEST_SECONDS = 300.0
_PATIENCE_SECONDS = 10.0  # for one look: longer is a file system that hangs
_LAST_LOOK_SECONDS = 2.0
_MOST_ROOTS = 8
_MANY_FILES = 500
_MOST_HEADS_AT_THE_END = 4096
_SPACE_SECONDS = 30.0  # between two readings of a disk that hardly changed
_SPACE_CHANGED = 0.002  # of its size


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """What the watch must know of the job: told by the hub, anew for each look."""

    argv: tuple[str, ...] = ()
    pid: int = 0  # CMD's own
    rank_pid: int | None = None
    uid: int | None = None
    saving: bool = False
    said: tuple[str, ...] = ()  # the paths that the log named


class CheckpointWatch:
    """Puts readings until it is stopped. `view` is called on the watch's thread."""

    def __init__(  # noqa: PLR0917 - one caller, the hub
        self,
        host: str,
        put: Callable[[Record], None],
        view: Callable[[], WatchedJob],
        sampled: Callable[[str, float], None] = lambda source, seconds: None,
        run_dir: str = "",
        seconds: float = _SECONDS,
        proc: Path = Path("/proc"),
    ) -> None:
        self._host = host
        self._put = put
        self._view = view
        self._sampled = sampled
        self._run_dir = run_dir
        self._seconds = seconds
        self._proc = os.fspath(proc)
        self._wake = threading.Event()
        self._stopped = False
        self._began = time.time()
        self._readers: dict[tuple[str, str], checkpoint.CheckpointReader] = {}
        self._shown: dict[tuple[str, str], Payload] = {}
        self._spaces: dict[str, tuple[float, int]] = {}
        self._told: dict[str, str] = {}
        self._most_heads = checkpoint.MOST_HEADS
        self._cwd = ""
        self._files: JobFiles | None = None
        self._is_rank = False
        self.attached = False  # to a job that diag did not start, and which may be another user's
        self._places: dict[str, tuple[int, int]] = {}  # folders of another container: device and inode
        self._words: tuple[int, tuple[str, ...]] = (0, ())
        self._loaded = False
        self._many = False  # each look at them is a large record of the journal
        self._cpu = 0.0
        self._looking: threading.Thread | None = None
        self._look_began = 0.0

    def start(self) -> None:
        self._began = time.time()
        threading.Thread(target=self._run, name="checkpoints", daemon=True).start()

    def read_soon(self) -> None:
        """For a dump: the next look is due now. Does not wait."""
        self._wake.set()

    def finish(self) -> None:
        """The job has ended: stop, after one last look at what it left."""
        if self._stopped:
            return
        self._stopped = True
        self._most_heads = _MOST_HEADS_AT_THE_END
        self._wake.set()
        under_way = self._looking
        if (
            under_way is not None and time.monotonic() - self._look_began < _PATIENCE_SECONDS
        ):  # it tells of before the end
            under_way.join(_LAST_LOOK_SECONDS)
        self._shown.clear()  # told again even if nothing has changed: what lies there now is what is left
        self._look(_LAST_LOOK_SECONDS)

    def _run(self) -> None:
        while not self._stopped:
            began, before = time.monotonic(), self._cpu
            self._look(_PATIENCE_SECONDS)
            wall = time.monotonic() - began
            quick = self._view().saving and not self._many
            usual = min(self._seconds, _SAVING_SECONDS) if quick else self._seconds
            pause = min(max(usual, (self._cpu - before) / _COST_RATIO, wall / _WALL_RATIO), _LONGEST_SECONDS)
            if self._wake.wait(max(0.0, pause - wall)):
                self._wake.clear()

    # -- one look
    # ---------------------------------------------------------------------------------------------

    def _look(self, patience: float) -> None:
        if self._looking is None or not self._looking.is_alive():
            looking = threading.Thread(target=self._look_now, name="checkpoints-look", daemon=True)
            began = self._look_began = time.monotonic()
            try:
                looking.start()
            except RuntimeError as error:
                self._failed(
                    "checkpoints",
                    f"cannot be looked at: {error}",
                    "raise the limit of threads (ulimit -u, pids.max)",
                )
                return
            self._looking = looking
            self._looking.join(patience)
            if not self._looking.is_alive():
                self._sampled(checkpoint.SOURCE, time.monotonic() - began)
                self._works("the file system of the checkpoints")
                return
        waited = time.monotonic() - self._look_began
        self._failed(
            "the file system of the checkpoints",
            "it has not answered for 10 s or more"
            if waited >= _PATIENCE_SECONDS
            else "a look at what the job left took too long when it ended",
            "look at the network file system: `df` on its mount point, dmesg, the storage's own health",
        )

    def _look_now(self) -> None:
        spent = time.thread_time()
        try:
            self._read_all(self._view())
        except Exception as error:  # the outermost frame of a thread: the alternative is silence
            self._failed("checkpoints", f"bug in diag: {type(error).__name__}: {error}", "report it, please")
        finally:
            self._cpu += time.thread_time() - spent

    def _read_all(self, view: WatchedJob) -> None:
        files = self._see_as(view)
        if files is None:
            return
        named = named_paths((*view.argv, *self._words_of(view)))
        saves = [item for item in named if item.role == "save"]
        for flag, path in self._save_roots(view, saves, files):
            self._read_folder(path, files, "save", flag)
        if not self._loaded and view.rank_pid is not None:
            self._loaded = True
            for item in named:
                if item.role == "load":
                    self._read_folder(self._absolute(item.path), files, "load", item.flag)
        places = [(self._absolute(item.path), "save") for item in saves] or [
            (root, "save") for root in self._said_roots(view)
        ]
        places.append((self._temporary(view), "tmp"))
        for path, purpose in places[:_MOST_ROOTS]:
            self._read_disk(path, files, purpose, view.uid)
        if self._run_dir:
            self._read_disk(self._run_dir, disk.OURS, "run_dir", os.getuid())

    def _see_as(self, view: WatchedJob) -> Files | None:
        """A rank's files, once there was one; until then those of CMD. None where nobody knows any more whose
        they were."""
        pid = view.rank_pid or (0 if self._is_rank else view.pid)
        if pid and (self._files is None or self._files.pid != pid or self._files.has_ended()):
            with contextlib.suppress(OSError):
                self._files, self._is_rank = JobFiles(pid, self._proc), view.rank_pid is not None
        files = self._files
        if files is None:
            return None if self.attached else disk.OURS  # CMD of our own user, that ended within a second
        files.look()
        with contextlib.suppress(OSError):  # gone, or hidden: what was seen of it last
            self._cwd = files.cwd()
        return files

    def _is_seen_as_then(self, path: str, files: Files) -> bool:
        """False for what a rank of another container saved to, when that has ended and no folder of ours is
        the same."""
        if not isinstance(files, JobFiles) or not files.apart:
            return True
        try:
            if not files.has_ended():
                found = files.stat(path)
                self._places[path] = (found.st_dev, found.st_ino)
                return True
            found = disk.OURS.stat(path)
        except (OSError, ValueError):
            return not files.has_ended()  # the reading says what is wrong with it
        files.by_our_names = self._places.get(path) == (found.st_dev, found.st_ino)
        return files.by_our_names

    def _absolute(self, path: str) -> str:
        return os.path.normpath(
            Path(self._cwd or Path.cwd(), Path(path).expanduser() if path.startswith("~/") else path)
        )

    def _said_roots(self, view: WatchedJob) -> list[str]:
        return list(dict.fromkeys(self._absolute(save_root(path)) for path in reversed(view.said)))

    def _save_roots(
        self, view: WatchedJob, saves: list[NamedPath], files: Files
    ) -> Iterator[tuple[str, str]]:
        """(flag, folder): those that a line named, the named ones, and what ms-swift makes below these in
        this run."""
        roots = dict.fromkeys(self._said_roots(view), "")
        for item in saves:
            path = self._absolute(item.path)
            roots.setdefault(path, item.flag)
            try:
                below = (
                    checkpoint.version_folders(path, self._began - 60.0, files)
                    if self._is_seen_as_then(path, files)
                    else []
                )
            except (OSError, ValueError):
                continue  # said by the reading of `path` itself
            for version in below[:2]:
                roots.setdefault(version, item.flag)
        for path, flag in list(roots.items())[:_MOST_ROOTS]:
            yield flag, path

    def _read_folder(self, path: str, files: Files, role: str, flag: str) -> None:
        if not self._is_seen_as_then(path, files):
            return
        key = (path, role)
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = checkpoint.CheckpointReader(path, role, flag)
        try:
            payload = reader.sample(self._most_heads, files)
        except checkpoint.CheckpointUnavailable as error:
            self._failed(f"checkpoints in {path!r}", error.reason, error.remedy)
            return
        self._works(f"checkpoints in {path!r}")
        self._many = max(
            self._many, sum(len(folder.get("files", ())) for folder in payload["folders"]) > _MANY_FILES
        )
        known = self._shown.get(key)
        if known is None and role == "save" and not payload["folders"] and not payload["tracker"]:
            return  # nothing was saved here yet
        if payload != known:
            self._shown[key] = payload
            self._put(Record(checkpoint.SOURCE, payload, host=self._host, emitted=time.time()))

    def _read_disk(self, path: str, files: Files, purpose: str, uid: int | None) -> None:
        if not self._is_seen_as_then(path, files):
            return
        now = time.monotonic()
        try:
            payload = disk.read(path, purpose, uid, files)
        except disk.DiskUnavailable as error:
            self._failed(f"free space of {path!r}", error.reason, error.remedy)
            return
        self._works(f"free space of {path!r}")
        at, free = self._spaces.get(path, (-_SPACE_SECONDS, -1))
        if now - at >= _SPACE_SECONDS or abs(free - payload["bavail"]) > _SPACE_CHANGED * payload["blocks"]:
            self._spaces[path] = (now, payload["bavail"])
            self._put(Record(disk.SOURCE, payload, host=self._host, emitted=time.time()))

    def _words_of(self, view: WatchedJob) -> tuple[str, ...]:
        """The rank's own arguments: `diag run -- bash train.sh` says nothing. Kept when it has ended."""
        if view.rank_pid is not None and view.rank_pid != self._words[0]:
            try:
                raw = Path(f"{self._proc}/{view.rank_pid}/cmdline").read_bytes()
            except OSError:
                return self._words[1]
            self._words = (view.rank_pid, tuple(os.fsdecode(word) for word in raw.split(b"\0")[:-1]))
        return self._words[1]

    def _temporary(self, view: WatchedJob) -> str:
        """TMPDIR of the rank, where we may know it."""
        try:
            words = Path(f"{self._proc}/{view.rank_pid or view.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return tempfile.gettempdir()
        named = next((word[7:] for word in words if word.startswith(b"TMPDIR=")), b"")
        return os.fsdecode(named) if named.startswith(b"/") else "/tmp"

    def _failed(self, what: str, reason: str, remedy: str) -> None:
        if self._told.get(what) != reason:
            self._told[what] = reason
            self._put(run_source.failed(what, reason, remedy, host=self._host))

    def _works(self, what: str) -> None:
        if self._told.pop(what, None) is not None:
            self._put(run_source.works(what, host=self._host))
