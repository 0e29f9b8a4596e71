"""How full a file system is, as the job's user may use it: blocks, inodes, the user's quota where the kernel
tells it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from diag.model import Payload, Record
from diag.model.observations import DiskSpace, Observation, Unparsed
from diag.sources.host.job_files import Files
from diag.sources.payload import wholes
from diag.text.errors import SourceUnavailable

SOURCE = "disk"
OURS = Files()
_NUMBERS = ("frsize", "blocks", "bfree", "bavail", "files", "favail")  # of statvfs(3), less its f_

# quotactl(2) and linux/quota.h: QCMD(Q_GETQUOTA, USRQUOTA); if_dqblk has limits in KiB, usage in bytes.
_Q_GETUSER = (0x800007 << 8) | 0
_QIF_LIMITS, _QIF_USAGE = 0x1 | 0x4, 0x2 | 0x8
_QUOTA_FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs", "f2fs", "jfs", "reiserfs", "ocfs2")


class DiskUnavailable(SourceUnavailable):
    """The file system cannot be asked; `reason` and `remedy` as SourceFailed wants them."""


class _Quota(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("block_hard", "block_soft", "bytes_used", "inode_hard", "inode_soft", "inodes_used", "block_time", "inode_time")
    ] + [("valid", ctypes.c_uint32)]  # fmt: skip


def read(path: str, purpose: str, uid: int | None = None, files: Files = OURS) -> Payload:
    """statvfs of `path` or of the nearest folder above that is there. Raises DiskUnavailable."""
    there = Path(path)
    try:
        while True:
            try:
                answer, number = files.space(str(there))
                break
            except FileNotFoundError:
                if there.parent == there:
                    raise
                there = there.parent
        device, kind = _mount_of(number)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise DiskUnavailable(
            f"{path} cannot be asked for its free space: {why}", "run diag as the user that owns the job"
        ) from error
    return {
        "path": path,
        "purpose": purpose,
        **{name: getattr(answer, f"f_{name}") for name in (*_NUMBERS, "ffree")},
        "type": kind,
        "read_only": bool(answer.f_flag & os.ST_RDONLY),
        "uid": uid,
        "quota": _quota(device, kind, uid),
    }


def _mount_of(device: int) -> tuple[str, str]:
    """(special file, type) by the device number; ("", "") where it is not in this mount namespace."""
    return _mounts(_mounts_changed()).get(f"{os.major(device)}:{os.minor(device)}", ("", ""))


def _mounts_changed() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _mounts(text: str) -> dict[str, tuple[str, str]]:
    # Linux 6.1: 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue   (proc_pid_mountinfo(5))
    found = {}
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields, after = left.split(" "), right.split(" ")
        if dash and len(fields) > 2 and len(after) > 1:
            found[fields[2]] = (after[1], after[0])
    return found


def _quota(device: str, kind: str, uid: int | None) -> Payload | None:
    """The limits of a user who has some. Those of NFS and Lustre are kept by the server; root has none."""
    if not uid or kind not in _QUOTA_FILE_SYSTEMS:
        return None
    answer = _Quota()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.quotactl(_Q_GETUSER, os.fsencode(device), uid, ctypes.byref(answer)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    if answer.valid & (_QIF_LIMITS | _QIF_USAGE) != _QIF_LIMITS | _QIF_USAGE:
        return None
    return {
        name: getattr(answer, name)
        for name in ("block_hard", "block_soft", "bytes_used", "inode_hard", "inodes_used")
    }


def parse(record: Record) -> Iterator[Observation]:
    """One DiskSpace."""
    payload = record.payload
    numbers = wholes(payload, *_NUMBERS)
    if numbers is None or not isinstance(payload.get("path"), str):
        yield Unparsed(record.rank, SOURCE, "no statvfs numbers", str(payload)[:200])
        return
    frsize, blocks, free, available, files, inodes = numbers
    # f_bavail leaves out what is reserved for root; a job of root may use that too.
    usable = free if payload.get("uid") == 0 else available
    quota = wholes(payload.get("quota"), "block_hard", "bytes_used", "inode_hard", "inodes_used")
    rest = max(0, quota[0] * 1024 - quota[1]) if quota and quota[0] else None
    few = max(0, quota[2] - quota[3]) if quota and quota[2] else None
    # btrfs and many network file systems have no fixed number of inodes and say 0.
    yield DiskSpace(
        record.rank,
        payload["path"],
        str(payload.get("purpose") or ""),
        frsize * blocks,
        frsize * usable,
        total_inodes=files or None,
        available_inodes=(inodes if few is None else min(inodes, few)) if files else few,
        quota_bytes=rest,
        file_system=str(payload.get("type") or ""),
    )
