"""What people look up first, as texts in a bundle: the end of the job's output, and of the kernel's log."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from diag.launch.launchers.secrets import hidden_in_lines

_LINES = 1000
_MOST_BYTES = 1 << 20  # of the end of one file
_KERNEL_LINES = 500
_MOST_RECORDS = 200_000  # the kernel's ring holds fewer; while it floods, reading would not end
_RECORD_BYTES = 16 * 1024


def log_text(run_dir: Path) -> dict[str, str]:
    """log.txt: the last thousand lines of what the job printed, of each of its files (`diag watch` has none)."""
    parts = []
    for path in (run_dir / name for name in ("output.log", "stdout.log", "stderr.log")):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MOST_BYTES))
                data = file.read(_MOST_BYTES)
        except OSError:
            continue
        lines = data.decode("utf-8", "replace").splitlines()[-_LINES:]
        parts.append(f"==> {path.name}: the last {len(lines)} lines\n" + hidden_in_lines("\n".join(lines)))
    return {"log.txt": "\n".join(parts) + "\n"} if parts else {}


def kernel_text(path: Path = Path("/dev/kmsg")) -> dict[str, str]:
    """kernel.txt: the end of the kernel's log as `dmesg` shows it, or why it cannot be read."""
    lines: deque[str] = deque(maxlen=_KERNEL_LINES)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return {"kernel.txt": f"not checked: {path}: {error.strerror}\n"}
    try:
        for _ in range(_MOST_RECORDS):
            try:
                raw = os.read(fd, _RECORD_BYTES)
            except BrokenPipeError:  # overwritten while we read: the next read goes on behind the gap
                continue
            except BlockingIOError:
                break
            if not raw:
                break
            lines.append(_line(raw))
    except OSError as error:
        return {"kernel.txt": f"not checked: {path}: {error.strerror}\n"}
    finally:
        os.close(fd)
    return {"kernel.txt": hidden_in_lines("\n".join(lines)) + "\n"}


def _line(raw: bytes) -> str:
    r"""
    >>> _line(b"3,561,57407793,-;Out of memory: Killed process 216\n SUBSYSTEM=pci\n")
    '[   57.407793] Out of memory: Killed process 216'
    """
    head, _, text = raw.partition(b";")
    fields = head.split(b",")
    shown = text.partition(b"\n")[0].decode("utf-8", "replace")
    if len(fields) < 3 or not fields[2].isdigit():
        return shown
    return f"[{int(fields[2]) / 1e6:12.6f}] {shown}"
