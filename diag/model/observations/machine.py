"""Processes and their limits, disks and the checkpoints on them."""

from __future__ import annotations

from dataclasses import dataclass

from diag.model.observations.base import Observation


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process now. `state` is the letter of /proc/PID/stat (R S D T t Z X); io fields are None when
    denied."""

    pid: int
    ppid: int
    comm: str
    state: str
    cpu_seconds: float
    threads: int
    rss_bytes: int
    start_ticks: int
    read_chars: int | None = None
    write_chars: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    wchan: str = ""


@dataclass(frozen=True, slots=True)
class ProcessTree(Observation):
    """A rank's process and all that live below it, read at one moment. `emitted` is the reader's clock."""

    main: ProcessSample
    children: tuple[ProcessSample, ...]
    emitted: float
    open_files: int | None = None
    peak_rss_bytes: int | None = None
    pinned_bytes: int | None = None
    locked_bytes: int | None = None
    main_thread_cpu_seconds: float | None = None
    anon_bytes: int | None = None  # of the rank's resident memory: its own, not of files and not shared
    shmem_bytes: int | None = None
    swap_bytes: int | None = None
    # Of the main thread: ready and without a core, switches that it did not ask for and those that it did.
    run_delay_seconds: float | None = None
    preemptions: int | None = None
    switches: int | None = None
    cores: str = ""  # that it may use, as the kernel lists them: "0-3,8"
    beside: tuple[
        tuple[int, str], ...
    ] = ()  # pid and command of who else runs there; read while it gets no core
    pauses: int = 0  # grows as diag pauses the process for native frames, and as it lets it go on
    tracer: tuple[int, str] | None = None  # pid and command of who has attached to it by ptrace(2)


@dataclass(frozen=True, slots=True)
class LimitsSeen(Observation):
    """/proc/PID/limits, soft values; None is unlimited, a missing key for not shown."""

    pid: int
    soft: tuple[tuple[str, int | None], ...]
    rdma_devices: bool = False  # /dev/infiniband is there, seen through the rank's own root
    ipc_lock: bool | None = None  # CAP_IPC_LOCK: the limit of locked memory does not hold; None: not seen

    def get(self, name: str) -> int | None:
        return dict(self.soft).get(name)


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
