"""What the job names - its log, a checkpoint, a pipe of torch - opened as the job itself would: beneath its
root, as its user.

A path in a command line, an environment, a log or /proc/PID/maps is the job's word, and may be a link to
anything. Where diag has more rights than the job (root beside another user's ranks, a sidecar beside another
container), following it would publish what the job may not read. Where it has the same, a path is opened as
it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from diag.sources.host.file_rights import Rights, acting_as, open_beneath, rights_in, walk_beneath
from diag.sources.host.process_tree import colon_fields

_PROC = Path("/proc")
_LOOK_SECONDS = 1.0
_LISTED = 20_000


class Files:
    """Files by our own names for them, with our own rights. Every method raises OSError."""

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor. FIFOs and devices do not block; whoever wants a regular file takes `open_file`."""
        return os.open(path, _flags(flags))

    def open_file(self, path: str) -> int:
        """The same for a regular file; OSError for all else."""
        fd = self.open(path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "no regular file", path)
        return fd

    def read(self, path: str, most: int, offset: int = 0) -> bytes:
        """Of a regular file."""
        fd = self.open_file(path)
        try:
            return os.pread(fd, most, offset)
        finally:
            os.close(fd)

    def stat(self, path: str) -> os.stat_result:
        """Of what a link leads to."""
        return os.stat(path)  # noqa: PTH116 - paths are text here

    def space(self, path: str) -> tuple[os.statvfs_result, int]:
        """Of its file system, and that one's device number."""
        return os.statvfs(path), os.stat(path).st_dev  # noqa: PTH116 - as above

    def readlink(self, path: str) -> str:
        """FileNotFoundError also for what is no link."""
        with self._held(path, os.O_NOFOLLOW) as fd:
            return os.readlink("", dir_fd=fd)

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        """Entries by their names alone. What a link leads to is for `stat` here to say, not for the entry's."""
        with os.scandir(path) as entries:
            yield entries

    def names(self, path: str) -> list[str]:
        with self.scandir(path) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(_LISTED), strict=False))

    @contextlib.contextmanager
    def _held(self, path: str, flags: int = 0) -> Iterator[int]:
        fd = self.open(path, os.O_PATH | flags)
        try:
            yield fd
        finally:
            os.close(fd)


class JobFiles(Files):
    """The files of one process by its own names for them, with its rights. Raises OSError where there is no
    such process.

    The process is held by a descriptor of its /proc folder, so that another one that gets its pid is not
    taken for it. After its end what was seen of it last holds; another root than ours is gone with it.
    """

    def __init__(self, pid: int, proc: str | os.PathLike[str] = _PROC) -> None:
        self.pid = pid
        self._proc = os.fspath(proc)
        self._folder = os.open(f"{self._proc}/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.gone = False
        self.apart = False  # has another root than we have
        # after its end: the caller has seen that the names of its root are ours too
        self.by_our_names = False
        self._looked = 0.0
        try:
            self.rights = self._read_rights()
            self.look()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> JobFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        folder, self._folder = getattr(self, "_folder", -1), -1
        if folder >= 0:
            os.close(folder)

    # -- who it is

    def look(self) -> None:
        """See again as whom it runs, and whether its root is ours."""
        self._looked = time.monotonic()
        try:
            self.rights = self._read_rights()
        except OSError:
            self.gone = True
            return
        # a zombie, or hidden from us: then we have no more rights through it
        with contextlib.suppress(OSError):
            places = (("root", "/"), ("ns/mnt", f"{self._proc}/self/ns/mnt"))
            self.apart = any(
                not os.path.samestat(os.stat(theirs, dir_fd=self._folder), os.stat(ours))  # noqa: PTH116 - dir_fd
                for theirs, ours in places
            )

    def _read_rights(self) -> Rights:
        fd = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            return rights_in(os.read(fd, 1 << 16))
        finally:
            os.close(fd)

    @property
    def plain(self) -> bool:
        """The job may do what we may: nothing is to be guarded."""
        return not self.apart and self.rights.uid == os.geteuid()

    @property
    def place(self) -> tuple[int, ...]:
        """Equal for processes whose files are opened alike."""
        return (self.rights.uid, self.rights.gid, self.pid if self.apart else 0)

    def cwd(self) -> str:
        """Its working directory by its own name. Raises OSError."""
        return self.inside(os.readlink("cwd", dir_fd=self._folder))

    def inside(self, path: str) -> str:
        """Its own name of what /proc shows us of it: in a chroot these begin at our root."""
        try:
            root = os.readlink("root", dir_fd=self._folder)
        except OSError:
            return path
        return path[len(root) :] if root != "/" and path.startswith(f"{root}/") else path

    # -- opening

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self.look()
        if self.plain:
            return super().open(path, flags)
        root, is_theirs = self._open_root()
        try:
            with acting_as(self.rights) as acted:
                if acted:
                    # theirs lead elsewhere in our root
                    return open_beneath(root, path, _flags(flags), links=is_theirs)
            return walk_beneath(root, path, _flags(flags), links=is_theirs, judged=self.rights)
        finally:
            os.close(root)

    def _open_root(self) -> tuple[int, bool]:
        """And whether it is the process's own."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        if self.apart and not self.has_ended():
            return os.open("root", flags, dir_fd=self._folder), True
        if self.apart and not self.by_our_names:
            raise ProcessLookupError(errno.ESRCH, "the process has ended, and its root with it")
        return os.open("/", flags), not self.apart

    def has_ended(self) -> bool:
        """A zombie has no root any more either."""
        try:
            os.readlink("root", dir_fd=self._folder)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:  # not to be seen by us
            return self.gone
        return False

    def open_printed(self, number: int) -> int:
        """The regular file that the process has open as this descriptor, such as 1.

        A job may print into a file that it may not open: a shell of root redirected it. That it holds it is
        proof only where it could not have taken it by itself: not with O_PATH, which asks for no right to it,
        nor where it may write but not read.
        """
        held = os.open(f"fd/{number}", os.O_PATH | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            found = os.fstat(held)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "no regular file")
            again, flags = f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            with acting_as(self.rights) as acted:
                if acted:
                    with contextlib.suppress(PermissionError):
                        return os.open(again, flags)
                    could_take_it = os.access(again, os.W_OK, effective_ids=True)
            if not acted:
                if self.rights.allow(found, os.R_OK):
                    return os.open(again, flags)
                could_take_it = self.rights.allow(found, os.W_OK)
            if could_take_it or not self._prints_to(number, held):
                raise PermissionError(errno.EACCES, "it is not the rank's to read")
            return os.open(again, flags)
        finally:
            os.close(held)

    def _prints_to(self, number: int, held: int) -> bool:
        """It has just this file open there, for writing. Flags and inode are of one reading: it may change
        them meanwhile."""
        theirs = _fdinfo(f"fdinfo/{number}", self._folder)
        ours = _fdinfo(f"/proc/self/fdinfo/{held}", None)
        flags = int(theirs.get("flags", "0"), 8)
        # ino: Linux 5.14
        same = all(name in theirs and theirs[name] == ours.get(name) for name in ("ino", "mnt_id"))
        return same and not flags & os.O_PATH and flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)

    # -- what else is asked of files

    def read_text(self, path: str, most: int = 1 << 20) -> str | None:
        """None for what cannot be read; a relative name begins at its working directory."""
        try:
            return self.read(path if path.startswith("/") else f"{self.cwd()}/{path}", most).decode(
                "utf-8", "replace"
            )
        except (OSError, ValueError):
            return None

    def stat(self, path: str) -> os.stat_result:
        if self.plain:
            return super().stat(path)
        with self._held(path) as fd:
            return os.fstat(fd)

    @contextlib.contextmanager
    def scandir(self, path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        if self.plain:
            with super().scandir(path) as entries:
                yield entries
            return
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(fd) as entries:
                yield entries
        finally:
            os.close(fd)

    def space(self, path: str) -> tuple[os.statvfs_result, int]:
        if self.plain:
            return super().space(path)
        with self._held(path) as fd:
            return os.statvfs(fd), os.fstat(fd).st_dev


def _flags(flags: int) -> int:
    return flags | os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NONBLOCK | os.O_NOCTTY)


def _fdinfo(path: str, folder: int | None) -> dict[str, str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return {}
    try:
        return colon_fields(os.read(fd, 4096).decode("ascii", "replace"))
    finally:
        os.close(fd)
