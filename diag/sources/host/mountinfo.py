"""The mounts of a process's namespace, by /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import re
from typing import NamedTuple


class Mount(NamedTuple):
    number: str  # as `mnt_id` of fdinfo
    device: str  # major:minor
    root: str  # what of the file system is mounted
    point: str
    type: str
    source: str
    options: str  # of the file system: of cgroup v1 its controllers


def mounts(text: str) -> list[Mount]:
    # Linux 6.18: 39 23 0:39 / /mnt/data rw,relatime shared:5 - fuse.sshfs host:/data rw,user_id=0
    found = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if dash and len(fields) > 4:
            number, _, device, root, point = (_unescaped(field) for field in fields[:5])
            kind, source, options, *_ = (*map(_unescaped, right.split(" ")), "", "")
            found.append(Mount(number, device, root, point, kind, source, options))
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
