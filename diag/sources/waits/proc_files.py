"""Files of /proc that several of this package read: the command, the descriptors and the mounts of a process."""

from __future__ import annotations

from diag.launch.launchers.secrets import redacted
from diag.sources.host.process_tree import read_raw, split_stat

_COMMAND = 160


def command_of(proc: str, pid: int) -> str:
    """As it was started, without what looks like a secret."""
    raw = (read_raw(f"{proc}/{pid}/cmdline") or b"").decode(errors="replace")
    return " ".join(redacted(raw.rstrip("\0").split("\0")))[:_COMMAND].strip()


def parent_and_start(proc: str, pid: int) -> tuple[int, float]:
    """Its parent, and when it began, in ticks since boot; zeros for one that is gone."""
    stat = read_raw(f"{proc}/{pid}/stat")
    try:
        fields = split_stat(stat.decode(errors="replace"))[2] if stat else []
        return int(fields[1]), float(fields[19])
    except (ValueError, IndexError):
        return 0, 0.0


def cpu_limit(proc: str, pid: int) -> int | None:
    """Seconds of CPU time after which the kernel ends it (RLIMIT_CPU); None for no limit."""
    raw = (read_raw(f"{proc}/{pid}/limits") or b"").decode(errors="replace")
    # Max cpu time              2                    6                    seconds   (Linux 6.18)
    row = next((line.split() for line in raw.splitlines() if line.startswith("Max cpu time")), [])
    return int(row[3]) if len(row) > 3 and row[3].isdigit() else None


def fdinfo(proc: str, pid: int, fd: int) -> dict[str, str]:
    """Lines of one name (`tfd`, `lock`) together, as they stood."""
    raw = (read_raw(f"{proc}/{pid}/fdinfo/{fd}") or b"").decode(errors="replace")
    found: dict[str, str] = {}
    for line in raw.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name] = f"{found[name]}\n{value.strip()}" if name in found else value.strip()
    return found


def open_mode(info: dict[str, str]) -> int:
    """0 to read, 1 to write, 2 both."""
    return int(info.get("flags", "0"), 8) & 3


def mounts(proc: str, pid: int) -> list[list[str]]:
    """Of its mount namespace: id, device, mount point, type, source."""
    raw = (read_raw(f"{proc}/{pid}/mountinfo") or b"").decode(errors="replace")
    rows = []
    for line in raw.splitlines():
        # 39 23 0:39 / /mnt/data rw,relatime shared:5 - fuse.sshfs host:/data rw,user_id=0   (Linux 6.18)
        left, dash, right = line.partition(" - ")
        fields = left.split()
        if dash and len(fields) > 4:
            rows.append([fields[0], fields[2], fields[4].replace("\\040", " "), *right.split()[:2]])
    return rows
