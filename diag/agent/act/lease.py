"""The lease of a job of several nodes: which of them acts, under which number, and what is to be done under that number.

On a folder that all nodes share. Numbers only grow, and each is somebody's for good: the file of a number is made whole and
once (link(2), which is atomic on NFS too). The holder touches it; the file server stamps that. Nobody compares clocks: a
number is over when a reader has not seen its stamp change for `TTL_SECONDS` by the reader's own clock, which runs on while
the machine sleeps; its holder stops to believe in it after half of that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

TTL_SECONDS = 20.0  # ours: a holder that was killed is replaced after it
FRESH_SECONDS = 15.0  # three beats: a node that has not spoken for so long does not follow
FOLDER = ".leases"
_MOST_BYTES = 1 << 20
_KEPT = 20  # numbers
_OLD_SECONDS = 86400.0  # of the words of nodes that ended without a last one, by the file server's clock
_NAME = re.compile(r"(lease|order|outcome)-(\d{1,9})")
_WORD = re.compile(r"node-([\w.-]{1,128})\.json")

Document = Mapping[str, Any]


def awake_or_not() -> float:
    """Seconds that no clock's setting changes, and that go on in a machine that sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Stamps:
    """What was last seen to change, and when, by the reader's own clock."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, float]] = {}

    def unchanged(self, name: str, stamp: object, now: float, *, first: float) -> float:
        """Seconds for which it was not seen to change; `first` where it is seen for the first time."""
        known = self._seen.get(name)
        if known is None or known[0] != stamp:
            self._seen[name] = (stamp, now - (first if known is None else 0.0))
        return now - self._seen[name][1]


class Lease(Protocol):
    """What nodes need of it. All raise OSError where it cannot be reached."""

    def say(self, word: Document) -> None:
        """This node's word: that it is there, and what it has agreed to."""
        ...

    def words(self) -> dict[str, Document]:
        """Those of the nodes that spoke lately, by their run."""
        ...

    def hold(self) -> int:
        """Take the lease, or keep it. Its number; 0 where another has it."""
        ...

    def release(self, number: int) -> None:
        """It has served: `hold` takes the next one."""
        ...

    def holds(self, number: int) -> bool:
        """Whether this node still has it: asked right before it is used."""
        ...

    def number(self) -> int:
        """The newest; 0 before the first. What was ordered under an earlier one is void."""
        ...

    def order(self, number: int, document: Document) -> bool:
        """What is to be done under this number, said once. False where something was said."""
        ...

    def conclude(self, number: int, outcome: str) -> bool:
        """`go` or `void`, said once."""
        ...

    def ordered(self, number: int) -> tuple[Document | None, str]:
        """What was ordered, and its outcome."""
        ...

    def close(self) -> None:
        """This node leaves."""
        ...


@dataclass(eq=False)
class FileLease:
    """`owner` is this run's id. For one thread."""

    folder: Path
    owner: str
    clock: Callable[[], float] = awake_or_not
    _stamps: Stamps = field(default_factory=Stamps)
    _mine: tuple[int, float] = (0, 0.0)  # the number that is held, and when it was last touched

    @classmethod
    def of(cls, root: Path, token: str, owner: str) -> FileLease:
        """Of the nodes that have this token and this run root. Raises OSError."""
        folder = root / FOLDER / hashlib.sha256(f"diag lease {token}".encode()).hexdigest()[:24]
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} is another user's")
        return cls(folder, owner)

    # -- words --------------------------------------------------------------------------------------------

    def say(self, word: Document) -> None:
        temporary = self._write(json.dumps(word))
        temporary.replace(self.folder / f"node-{self.owner}.json")

    def words(self) -> dict[str, Document]:
        found: dict[str, Document] = {}
        now = self.clock()
        for name in os.listdir(self.folder):
            if matched := _WORD.fullmatch(name):
                word, stamp = self._read(name)
                # of one that was never seen to change it is not known whether it lives
                if (
                    isinstance(word, dict)
                    and self._stamps.unchanged(name, stamp, now, first=FRESH_SECONDS) < FRESH_SECONDS
                ):
                    found[matched[1]] = word
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            (self.folder / f"node-{self.owner}.json").unlink()

    # -- the lease ----------------------------------------------------------------------------------------

    def number(self) -> int:
        return max((number for kind, number in self._names() if kind == "lease"), default=0)

    def hold(self) -> int:
        number, began = self.number(), self.clock()
        if number and number == self._mine[0] and began - self._mine[1] < TTL_SECONDS / 2:
            os.utime(self.folder / f"lease-{number}")  # the file server's time
            self._mine = (number, began)
            return number if self.number() == number else 0
        if number:
            held, stamp = self._read(f"lease-{number}")
            ours = isinstance(held, dict) and held.get("owner") == self.owner  # and away for too long
            if not ours and self._stamps.unchanged(f"lease-{number}", stamp, began, first=0.0) < TTL_SECONDS:
                return 0
        if not self._make(f"lease-{number + 1}", json.dumps({"owner": self.owner})):
            return 0
        self._mine = (number + 1, began)
        self._forget_old(number + 1)
        return number + 1

    def release(self, number: int) -> None:
        if self._mine[0] == number:
            self._mine = (0, 0.0)

    def holds(self, number: int) -> bool:
        return (
            number > 0
            and number == self._mine[0]
            and self.clock() - self._mine[1] < TTL_SECONDS / 2
            and self.number() == number
        )

    def order(self, number: int, document: Document) -> bool:
        return self._make(f"order-{number}", json.dumps(document))

    def conclude(self, number: int, outcome: str) -> bool:
        return self._make(f"outcome-{number}", json.dumps(outcome))

    def ordered(self, number: int) -> tuple[Document | None, str]:
        document, outcome = self._read(f"order-{number}")[0], self._read(f"outcome-{number}")[0]
        return document if isinstance(document, dict) else None, str(outcome or "")

    # -- files --------------------------------------------------------------------------------------------

    def _names(self) -> list[tuple[str, int]]:
        return [
            (matched[1], int(matched[2]))
            for name in os.listdir(self.folder)
            if (matched := _NAME.fullmatch(name))
        ]

    def _read(self, name: str) -> tuple[Any, object]:
        """What it says, and its stamp; None where it is not there, or not whole. To open it makes NFS ask its server anew."""
        try:
            fd = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None, None
        with open(fd, encoding="utf-8") as file:
            found = os.fstat(fd)
            try:
                data = json.loads(file.read(_MOST_BYTES))
            except (ValueError, RecursionError):
                data = None
        return data, (found.st_ino, found.st_mtime_ns)

    def _write(self, text: str) -> Path:
        path = self.folder / f".{self.owner}-{secrets.token_hex(4)}"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    def _make(self, name: str, text: str) -> bool:
        """The file, whole and once. Of an answer that NFS has lost the number of links tells (open(2), O_EXCL)."""
        temporary = self._write(text)
        try:
            try:
                os.link(temporary, self.folder / name)
            except FileExistsError:
                return temporary.stat().st_nlink == 2
            except PermissionError:  # a file system without links
                return self._make_by_open(name, text)
            except OSError:
                if temporary.stat().st_nlink != 2:
                    raise
            return True
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _make_by_open(self, name: str, text: str) -> bool:
        """Who reads it half written takes it for not there yet."""
        try:
            fd = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        with open(fd, "w") as file:
            file.write(text)
        return True

    def _forget_old(self, newest: int) -> None:
        """Never the newest: numbers only grow."""
        now = (self.folder / f"lease-{newest}").stat().st_mtime
        for name in os.listdir(self.folder):
            matched = _NAME.fullmatch(name)
            with contextlib.suppress(OSError):
                path = self.folder / name
                if (
                    int(matched[2]) <= newest - _KEPT
                    if matched
                    else now - path.stat().st_mtime > _OLD_SECONDS
                ):
                    path.unlink()
