"""What is read of a job's checkpoints once a node: the folders that it saves to and begins from, and the
space on their disks.

A reading of a network file system that hangs is left alone in its own thread, and none is begun meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from diag.agent.samplers.context import NodeContext, NodeSampler, WatchedJob
from diag.agent.samplers.sampler import Reporter
from diag.knowledge.checkpoint_args import NamedPath, named_paths, save_root
from diag.model import Payload
from diag.sources.host.job_files import Files, JobFiles
from diag.sources.host.process_tree import read_raw
from diag.sources.storage import checkpoint, disk
from diag.text.errors import SourceUnavailable

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


class CheckpointSampler(NodeSampler):
    """Reads until `finish`, which looks once more. `view` is called on the sampler's thread."""

    name, what, sources = "checkpoints", "checkpoints", (checkpoint.SOURCE, disk.SOURCE)
    read_for_dumps = True

    def __init__(
        self,
        reporter: Reporter,
        view: Callable[[], WatchedJob],
        run_dir: str = "",
        every_seconds: float = _SECONDS,
        proc: Path = Path("/proc"),
    ) -> None:
        super().__init__(reporter, every_seconds)
        self._view = view
        self._run_dir = run_dir
        self._proc = os.fspath(proc)
        self._began = time.time()
        self._readers: dict[tuple[str, str], checkpoint.CheckpointReader] = {}
        self._shown: dict[tuple[str, str], Payload] = {}
        self._spaces: dict[str, tuple[float, int]] = {}
        self._most_heads = checkpoint.MOST_HEADS
        self._cwd = ""
        self._files: JobFiles | None = None
        self._is_rank = False
        self._places: dict[str, tuple[int, int]] = {}  # folders of another container: device and inode
        self._words: tuple[int, tuple[str, ...]] = (0, ())
        self._loaded = False
        self._many = False  # each reading of them is a large record of the journal
        self._cpu = 0.0
        self._looking: threading.Thread | None = None
        self._look_began = 0.0

    @classmethod
    def of(cls, node: NodeContext) -> CheckpointSampler:
        return cls(node.reporter, node.checkpoints, node.run_dir)

    def start(self) -> None:
        self._began = time.time()
        super().start()

    def stop(self) -> None:
        """The last save's line tells where to look: see `finish`."""

    def finish(self) -> None:
        """One last reading of what the job left."""
        if self.stopped:
            return
        super().stop()
        self._most_heads = _MOST_HEADS_AT_THE_END
        under_way = self._looking
        # what it reads is of before the end
        if under_way is not None and time.monotonic() - self._look_began < _PATIENCE_SECONDS:
            under_way.join(_LAST_LOOK_SECONDS)
        self._shown.clear()  # reported again even if nothing has changed: what lies there now is what is left
        self._look(_LAST_LOOK_SECONDS)

    def sample(self) -> None:
        self._look(_PATIENCE_SECONDS)

    def period(self, cpu: float, wall: float) -> float:
        quick = self._view().saving and not self._many
        usual = min(self.every_seconds, _SAVING_SECONDS) if quick else self.every_seconds
        return min(max(usual, cpu / _COST_RATIO, wall / _WALL_RATIO), _LONGEST_SECONDS)

    def cpu_seconds(self) -> float:
        return self._cpu  # of the threads that look

    # -- one look

    def _look(self, patience: float) -> None:
        if self._looking is None or not self._looking.is_alive():
            looking = threading.Thread(target=self._look_now, name="checkpoints-look", daemon=True)
            began = self._look_began = time.monotonic()
            try:
                looking.start()
            except RuntimeError as error:
                self.reporter.failed(
                    "checkpoints",
                    f"cannot be read: {error}",
                    "raise the limit of threads (ulimit -u, pids.max)",
                )
                return
            self._looking = looking
            self._looking.join(patience)
            if not self._looking.is_alive():
                self.reporter.sampled(checkpoint.SOURCE, time.monotonic() - began)
                self.reporter.works("the file system of the checkpoints")
                return
        waited = time.monotonic() - self._look_began
        self.reporter.failed(
            "the file system of the checkpoints",
            "it has not answered for 10 s or more"
            if waited >= _PATIENCE_SECONDS
            else "reading what the job left took too long when it ended",
            "check the network file system: `df` on its mount point, dmesg, the storage's own health",
        )

    def _look_now(self) -> None:
        spent = time.thread_time()
        try:
            self._read_all(self._view())
        except Exception as error:  # the outermost frame of a thread: the alternative is silence
            self.reporter.failed_by_bug(self.what, error)
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
            (root, "save") for root in self._logged_roots(view)
        ]
        places.append((self._temporary(view), "tmp"))
        for path, purpose in places[:_MOST_ROOTS]:
            self._read_disk(path, files, purpose, view.uid)
        if self._run_dir:
            self._read_disk(self._run_dir, disk.OURS, "run_dir", os.getuid())

    def _see_as(self, view: WatchedJob) -> Files | None:
        """A rank's files, once there was one; until then those of CMD. None where it is not known any more whose
        they were."""
        pid = view.rank_pid or (0 if self._is_rank else view.pid)
        if pid and (self._files is None or self._files.pid != pid or self._files.has_ended()):
            with contextlib.suppress(OSError):
                self._files, self._is_rank = JobFiles(pid, self._proc), view.rank_pid is not None
        files = self._files
        if files is None:
            return None if view.attached else disk.OURS  # CMD of our own user, that ended within a second
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

    def _logged_roots(self, view: WatchedJob) -> list[str]:
        return list(dict.fromkeys(self._absolute(save_root(path)) for path in reversed(view.logged)))

    def _save_roots(
        self, view: WatchedJob, saves: list[NamedPath], files: Files
    ) -> Iterator[tuple[str, str]]:
        """(flag, folder): those that a line named, the named ones, and what ms-swift makes below these in
        this run."""
        roots = dict.fromkeys(self._logged_roots(view), "")
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
                continue  # reported by the reading of `path` itself
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
        except SourceUnavailable as error:
            self.reporter.failed(f"checkpoints in {path!r}", error.reason, error.remedy)
            return
        self.reporter.works(f"checkpoints in {path!r}")
        self._many = max(
            self._many, sum(len(folder.get("files", ())) for folder in payload["folders"]) > _MANY_FILES
        )
        known = self._shown.get(key)
        if known is None and role == "save" and not payload["folders"] and not payload["tracker"]:
            return  # nothing was saved here yet
        if payload != known:
            self._shown[key] = payload
            self.reporter.record(checkpoint.SOURCE, payload)

    def _read_disk(self, path: str, files: Files, purpose: str, uid: int | None) -> None:
        if not self._is_seen_as_then(path, files):
            return
        now = time.monotonic()
        try:
            payload = disk.read(path, purpose, uid, files)
        except SourceUnavailable as error:
            self.reporter.failed(f"free space of {path!r}", error.reason, error.remedy)
            return
        self.reporter.works(f"free space of {path!r}")
        at, free = self._spaces.get(path, (-_SPACE_SECONDS, -1))
        if now - at >= _SPACE_SECONDS or abs(free - payload["bavail"]) > _SPACE_CHANGED * payload["blocks"]:
            self._spaces[path] = (now, payload["bavail"])
            self.reporter.record(disk.SOURCE, payload)

    def _words_of(self, view: WatchedJob) -> tuple[str, ...]:
        """The rank's own arguments: `diag run -- bash train.sh` says nothing. Kept when it has ended."""
        if view.rank_pid is not None and view.rank_pid != self._words[0]:
            raw = read_raw(f"{self._proc}/{view.rank_pid}/cmdline")
            if raw is not None:
                self._words = (view.rank_pid, tuple(os.fsdecode(word) for word in raw.split(b"\0")[:-1]))
        return self._words[1]

    def _temporary(self, view: WatchedJob) -> str:
        """TMPDIR of the rank, where we may know it."""
        raw = read_raw(f"{self._proc}/{view.rank_pid or view.pid}/environ")
        if raw is None:
            return tempfile.gettempdir()
        named = next((word[7:] for word in raw.split(b"\0") if word.startswith(b"TMPDIR=")), b"")
        return os.fsdecode(named) if named.startswith(b"/") else "/tmp"
