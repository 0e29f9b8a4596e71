"""Opening a file with another user's rights and beneath another root: the system calls, without any view of
whose file it is."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

# setgroups(2) of one thread: libc's function changes all threads of the process. asm/unistd.h of each.
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "loongarch64": 159, "ppc64le": 81, "s390x": 206}
_OPENAT2 = 437  # on all machines; Linux 5.6
_NO_SYMLINKS, _IN_ROOT = 0x04, 0x10
_GET_SECUREBITS, _NO_SETUID_FIXUP = 27, 0x04
_MOST_LINKS = 40  # the kernel's own limit
_TRIES = 8
_NOT_THEIRS = "the rank may not open it"
_OF_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # all that openat2 takes with O_PATH


@dataclass(frozen=True, slots=True)
class Rights:
    """As whom a process opens files."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    def allow(self, found: os.stat_result, what: int) -> bool:
        """As the file's mode says it: R_OK, W_OK or X_OK."""
        if self.uid == 0:
            return True
        of_group = found.st_gid in (self.gid, *self.groups)
        return bool(found.st_mode >> (6 if found.st_uid == self.uid else 3 if of_group else 0) & what)


def rights_in(status: bytes) -> Rights:
    """Of /proc/PID/status. Raises OSError for what is none.

    >>> rights_in(b"Uid:\\t0\\t0\\t0\\t65534\\nGid:\\t0\\t0\\t0\\t65534\\nGroups:\\t4 20 \\n")
    Rights(uid=65534, gid=65534, groups=(4, 20))
    """
    lines = {name: value.split() for name, _, value in (line.partition(b":") for line in status.split(b"\n"))}
    try:
        return Rights(int(lines[b"Uid"][3]), int(lines[b"Gid"][3]), tuple(map(int, lines.get(b"Groups", []))))
    except (KeyError, IndexError, ValueError):
        raise OSError(errno.ESRCH, "the process is gone") from None


@contextlib.contextmanager
def acting_as(rights: Rights) -> Iterator[bool]:
    """This thread opens files with these rights, and no other does: the kernel, and the server of a network
    file system, judge it as they would the job. Yields False, with nothing changed, where diag cannot: it is
    not root, or lacks SETUID and SETGID.

    Import nothing within: diag's own files may be closed to that user.
    """
    if rights.uid == os.geteuid():
        yield True
        return
    own = Rights(os.geteuid(), os.getegid(), tuple(os.getgroups()))
    # another uid than 0 keeps its capabilities when it changes
    if own.uid != 0 or not _can_drop() or not _switch(rights):
        yield False
        return
    try:
        yield True
    finally:
        _switch(own)


def _switch(to: Rights) -> bool:
    libc = _libc()
    before = os.getgroups()
    if not _set_groups(to.groups):
        return False
    gid, uid = libc.setfsgid(to.gid), libc.setfsuid(to.uid)  # they return what was before, and say no error
    if (libc.setfsgid(-1), libc.setfsuid(-1)) == (to.gid, to.uid):
        return True
    libc.setfsuid(uid)
    libc.setfsgid(gid)
    _set_groups(before)
    return False


def _set_groups(groups: Sequence[int]) -> bool:
    number = ctypes.c_long(_SETGROUPS[os.uname().machine])
    return bool(_libc().syscall(number, len(groups), (ctypes.c_uint32 * len(groups))(*groups)) == 0)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _can_drop() -> bool:
    """A root whose capabilities do not go with its uid would still open everything."""
    return (
        os.uname().machine in _SETGROUPS and not _libc().prctl(_GET_SECUREBITS, 0, 0, 0, 0) & _NO_SETUID_FIXUP
    )


class _How(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


def open_beneath(root: int, path: str, flags: int, *, links: bool = True) -> int:
    """Open `path` with the folder `root` as `/`: links and `..` stay in it. Without `links` none is followed.
    Raises OSError."""
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise ValueError("embedded null byte")
    how = _How(flags & _OF_PATH if flags & os.O_PATH else flags, 0, _IN_ROOT | (0 if links else _NO_SYMLINKS))
    for _ in range(_TRIES):
        fd: int = _libc().syscall(
            ctypes.c_long(_OPENAT2), root, raw or b".", ctypes.byref(how), ctypes.sizeof(how)
        )
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        # an older kernel; a container's filter that does not know the call
        if number in (errno.ENOSYS, errno.EPERM):
            return walk_beneath(root, path, flags, links=links)
        if number != errno.EAGAIN:  # something was renamed on the way
            break
    raise OSError(number, os.strerror(number), path)


def walk_beneath(
    root: int, path: str, flags: int, *, links: bool = True, judged: Rights | None = None
) -> int:
    """The same step by step, where the kernel has no openat2. Each folder is held, so that we cannot be moved
    out of `root`.

    `judged`: only where these rights would do as well, by the modes: for a diag that cannot act as
    somebody else.
    """
    todo = _steps(path)
    followed = 0
    with contextlib.ExitStack() as held:
        at = [root]
        while todo:
            step = todo.pop()
            if judged is not None and not judged.allow(os.fstat(at[-1]), os.X_OK):
                raise PermissionError(errno.EACCES, _NOT_THEIRS, path)
            if step == "..":
                at = at[:-1] or at
                continue
            fd = os.open(step, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at[-1])
            held.callback(os.close, fd)
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                at.append(fd)
                continue
            followed += 1
            if not links or followed > _MOST_LINKS or (not todo and flags & os.O_NOFOLLOW):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink("", dir_fd=fd)
            if target.startswith("/"):
                at = [root]
            todo += _steps(target)
        if not flags & os.O_PATH:
            wanted = os.W_OK if flags & os.O_ACCMODE == os.O_WRONLY else os.R_OK
            if judged is not None and not judged.allow(os.fstat(at[-1]), wanted):
                raise PermissionError(errno.EACCES, _NOT_THEIRS, path)
            return os.open(f"/proc/self/fd/{at[-1]}", flags & ~os.O_NOFOLLOW)
        if flags & os.O_DIRECTORY and not stat.S_ISDIR(os.fstat(at[-1]).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return os.dup(at[-1])


def _steps(path: str) -> list[str]:
    """The last first."""
    return [part for part in PurePosixPath(path).parts if part not in ("/", "//")][::-1]
