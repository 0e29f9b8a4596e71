"""Who listens on a TCP port of this network namespace: /proc/net/tcp gives the socket, /proc/PID/fd whose it
is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Owner:
    """`pid` None where the process belongs to another user, or lives in another process namespace. `uid` of
    the socket."""

    pid: int | None
    uid: int
    command: str = ""


def owner_of(port: int, proc: Path = Path("/proc")) -> Owner | None:
    """None where no process listens there (a connection may still hold the port)."""
    found = _listening(port, proc)
    if found is None:
        return None
    inode, uid = found
    wanted = f"socket:[{inode}]"
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if any(os.readlink(entry.path) == wanted for entry in os.scandir(folder / "fd")):
                words = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
                return Owner(int(folder.name), uid, words[:200])
        except OSError:
            continue  # another user's, or gone
    return Owner(None, uid)


def _listening(port: int, proc: Path) -> tuple[str, int] | None:
    # Linux 6.18:
    #   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
    #    0: 00000000:7337 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 ...
    for name in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                return fields[9], int(fields[7])
    return None
