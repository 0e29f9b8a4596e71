"""The Flight Recorder through PyTorch's dump pipe: for ranks without our hook, and torch before its worker
server.

The old `nccl` backend's heartbeat monitor looks into a FIFO each second; any byte makes it write its dump
file. `diag run --no-inject` names the pipe, or the user has. The file is torch's own; we read it and leave
it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from diag.sources.collectives.worker_server import MAX_BYTES, NoAnswer
from diag.sources.host.job_files import JobFiles

# torch 2.4-2.14, ProcessGroupNCCL; FIFO <prefix><rank>.pipe, file <prefix><rank>. The second name is that
# before 2.11.
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_POLL_SECONDS = 0.05
_MOST_ENVIRON = 4 << 20


def variables(prefix: Path) -> dict[str, str]:
    """What `diag run` sets for CMD where the hook may not be used."""
    return {PIPE: f"{prefix}/fr_pipe_", _FILES[0]: f"{prefix}/fr_", _FILES[1]: f"{prefix}/fr_"}


def pipe_of(rank: int, pid: int, root: Path = Path("/proc")) -> Path | None:
    """The path of the rank's pipe as the rank names it, once it has created one."""
    prefix = _environment(root / str(pid) / "environ").get(PIPE)
    if not prefix:
        return None
    pipe = f"{prefix}{rank}.pipe"
    try:
        with JobFiles(pid, root) as files:
            return Path(pipe) if stat.S_ISFIFO(files.stat(pipe).st_mode) else None
    except (OSError, ValueError):
        return None


def ask_pipe(rank: int, pid: int, end: float, root: Path = Path("/proc")) -> bytes:
    """The bytes of the dump that the rank writes because we asked; `end` is on the monotonic clock.

    Raises NoAnswer: no_socket when there is no pipe either, timed_out when the file does not come (a monitor
    that waits for the GIL), failed when the pipe has no reader.
    """
    found = _environment(root / str(pid) / "environ")
    prefix = found.get(PIPE)
    written = next((found[name] for name in _FILES if found.get(name)), None)
    if not prefix or not written:
        raise NoAnswer("no_socket", f"and no {PIPE}" if not prefix else f"and no {_FILES[0]}")
    pipe, dump = Path(f"{prefix}{rank}.pipe"), Path(f"{written}{rank}")
    try:
        files = JobFiles(pid, root)
    except OSError:
        raise NoAnswer("no_socket", "and the process is gone") from None
    with files:
        before = _mark(files, dump)
        _knock(files, pipe)
        size = -1
        while time.monotonic() < end:
            now = _mark(files, dump)
            if now is not None and now != before:
                if now[1] == size:  # it did not grow since we looked
                    with contextlib.suppress(OSError):
                        return files.read(str(dump), MAX_BYTES + 1)
                size = now[1]
            time.sleep(_POLL_SECONDS)
    raise NoAnswer("timed_out", f"no new {dump.name} after a byte into {pipe.name}")


def _knock(files: JobFiles, pipe: Path) -> None:
    try:
        fd = files.open(str(pipe), os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NoAnswer("no_socket", f"and no pipe {pipe.name}") from None
    except OSError as error:  # ENXIO: no process has it open for reading
        raise NoAnswer("failed", f"{pipe.name}: {error.strerror}") from None
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            raise NoAnswer("failed", f"{pipe.name} is not a pipe")
        os.write(fd, b"1")
    except OSError as error:
        raise NoAnswer("failed", f"{pipe.name}: {error.strerror}") from None
    finally:
        os.close(fd)


def _mark(files: JobFiles, path: Path) -> tuple[int, int] | None:
    try:
        found = files.stat(str(path))
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size)


def _environment(path: Path) -> dict[str, str]:
    """The variables that the rank was started with, of those that name absolute paths here."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_ENVIRON)
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode("utf-8", "surrogateescape").split("\0"))
    return {name: value for name, _, value in pairs if name in (PIPE, *_FILES) and value.startswith("/")}
