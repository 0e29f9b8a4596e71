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
from diag.sources.host.mountinfo import mounts
from diag.sources.host.process_tree import PROC, read_text
from diag.sources.payload import wholes
from diag.text.errors import SourceUnavailable

SOURCE = "disk"
OURS = Files()
_NUMBERS = ("frsize", "blocks", "bfree", "bavail", "files", "favail")  # of statvfs(3), less its f_

# quotactl(2) and linux/quota.h: QCMD(Q_GETQUOTA, USRQUOTA); if_dqblk has limits in KiB, usage in bytes.
_Q_GETUSER = (0x800007 << 8) | 0
_QIF_LIMITS, _QIF_USAGE = 0x1 | 0x4, 0x2 | 0x8
_QUOTA_FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs", "f2fs", "jfs", "reiserfs", "ocfs2")


class _Quota(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("block_hard", "block_soft", "bytes_used", "inode_hard", "inode_soft", "inodes_used", "block_time", "inode_time")
    ] + [("valid", ctypes.c_uint32)]  # fmt: skip


def read(path: str, purpose: str, uid: int | None = None, files: Files = OURS) -> Payload:
    """statvfs of `path` or of the nearest folder above that is there. Raises SourceUnavailable."""
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
        raise SourceUnavailable(
            f"{path} does not report its free space: {why}", "run diag as the user that owns the job"
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
    known = _by_device(read_text(f"{PROC}/self/mountinfo"))
    return known.get(f"{os.major(device)}:{os.minor(device)}", ("", ""))


@lru_cache(maxsize=1)
def _by_device(mountinfo: str) -> dict[str, tuple[str, str]]:
    return {mount.device: (mount.source, mount.type) for mount in mounts(mountinfo)}


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
