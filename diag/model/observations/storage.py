"""Checkpoints and the disks that they go to."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """One checkpoint on disk. `kind`: torch_dist, torch_dcp, megatron_legacy, safetensors, deepspeed, hf,
    unknown.

    `missing` are the files without which it cannot be loaded; `changed_at` is the newest modification time in
    it, by the file system's clock; `iteration` is None where the name does not say.
    """

    path: str
    kind: str
    iteration: int | None
    files: int
    size_bytes: int
    changed_at: float
    missing: tuple[str, ...] = ()
    empty_files: int = 0
    damaged: tuple[str, ...] = ()  # files whose own header or length says that they are not whole, in words
    listed: bool = True  # False: too many files to read each; it was only counted


@dataclass(frozen=True, slots=True)
class CheckpointsSeen(Observation):
    """A folder of checkpoints, oldest first, and the tracker file that names the one to load.

    `tracker` is (file name, what it says), None when there is none. `role`: save, or load for what the job
    begins from. `exists` is False where nothing is at that path.
    """

    root: str
    folders: tuple[CheckpointFolder, ...]
    tracker: tuple[str, str] | None
    emitted: float
    role: str = "save"
    exists: bool = True
    flag: str = ""  # the argument that named it, "" where a log line did


@dataclass(frozen=True, slots=True)
class DiskSpace(Observation):
    """The file system of a path, as the job's user may use it; `quota_bytes` is the user's own rest where one
    is set."""

    path: str
    purpose: str  # save, tmp, shm, run_dir
    total_bytes: int
    available_bytes: int
    total_inodes: int | None = None
    available_inodes: int | None = None
    quota_bytes: int | None = None
    file_system: str = ""
