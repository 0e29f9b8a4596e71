"""Where Prometheus finds the hubs of a job: the list that `GET /sd` gives (http_sd), and a file of it
(file_sd).

Both name this hub and those of the job that it knows of (`Membership.other_targets`). The file is written by a
thread of its own: it often is on a network file system, which may hang, and the checks must not. It
replaces and removes what a diag wrote, and nothing else: a wrong path must not cost anybody a file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Prometheus itself reads its files every 5 min, or at once where inotify reports the change
_LOOK_SECONDS = 5.0
_LONGEST_NAME = 100
_MOST_BYTES = 4 << 20
_RUN_LABEL = "__meta_diag_run_id"


@dataclass(frozen=True, slots=True)
class Target:
    """A hub to scrape. `address` is host:port as Prometheus reaches it; `run_id` is of that hub."""

    address: str
    job_id: str
    node: str
    run_id: str = ""
    scheme: str = "http"

    def group(self) -> dict[str, Any]:
        """As http_sd and file_sd have it. The run's id changes with each restart, and would begin every
        series anew: it is offered to relabelling only."""
        labels = {"job_id": self.job_id, "node": self.node, _RUN_LABEL: self.run_id}
        if self.scheme != "http":
            labels["__scheme__"] = self.scheme
        return {"targets": [self.address], "labels": labels}


def sd_document(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The JSON of http_sd and file_sd; each address once, as the first that names it says.

    >>> sd_document([Target("10.0.0.7:9095", "812", "gpu-17"), Target("10.0.0.7:9095", "812", "?")])[0]["targets"]
    ['10.0.0.7:9095']
    """
    first: dict[str, Target] = {}
    for target in targets:
        first.setdefault(target.address, target)
    return [target.group() for target in first.values()]


def sd_path(place: Path, job_id: str, node: str) -> Path:
    """The file itself, or in a directory one a hub.

    >>> sd_path(Path("/tmp"), "dpo/7", "gpu-17").name
    'dpo_7-gpu-17.json'
    """
    if not place.is_dir():
        return place
    return place / (re.sub(r"[^A-Za-z0-9._-]", "_", f"{job_id}-{node}")[:_LONGEST_NAME].lstrip(".") + ".json")


def reachable_host(bound: str) -> str:
    """By what others reach a server bound to this address: of all interfaces, the one towards the default
    route.

    >>> reachable_host("10.1.2.3")
    '10.1.2.3'
    """
    if bound not in ("", "0.0.0.0", "::"):
        return f"[{bound}]" if ":" in bound else bound
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # documentation's network (RFC 5737): nothing is sent by connecting
        return str(probe.getsockname()[0])
    return socket.gethostname()


@dataclass(eq=False)
class SdFile:
    """The list as a file, from `start` to `close`: written whole or not at all, anew when it changes.

    `targets` gives the hubs of the job, this one first. It is called on the file's own thread, and never waits.
    """

    place: Path
    targets: Callable[[], Sequence[Target]]
    talk: Callable[[str], None] = lambda text: None
    _stop: threading.Event = field(default_factory=threading.Event)
    _written: tuple[Path, os.stat_result] | None = None
    _last: tuple[Target, ...] = ()
    _reported: str = ""
    _thread: threading.Thread = field(init=False)

    def start(self) -> SdFile:
        self._thread = threading.Thread(target=self._keep, name="diag-sd-file", daemon=True)
        self._thread.start()
        return self

    def close(self, timeout: float = 1.0) -> bool:
        """Take the file away. False when the file system did not answer in time."""
        self._stop.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _keep(self) -> None:
        while True:
            try:
                self._renew()
                self._reported = ""
            except OSError as error:
                reason = f"diag: {self.place} cannot be written for Prometheus: {error.strerror or error}"
                if reason != self._reported:  # once; it is tried again
                    self.talk(reason)
                self._reported = reason
            if self._stop.wait(_LOOK_SECONDS):
                break
        self._remove()

    def _renew(self) -> None:
        targets = tuple(self.targets())
        if not targets:
            return
        path = sd_path(self.place, targets[0].job_id, targets[0].node)
        if path != self.place:
            targets = targets[:1]  # in a directory each hub has a file of its own, which names it alone
        with _folder(path.parent) as folder:
            there = _diags_own(path.name, folder)
            # Hubs that share one file do not take it from each other again and again; one that was taken away
            # is made anew.
            if targets == self._last and there:
                return
            body = json.dumps(sd_document(targets), indent=1, ensure_ascii=False) + "\n"
            # A name that no *.json of file_sd matches, in the same directory: a rename there is atomic.
            temporary = f".{path.name}.{secrets.token_hex(8)}.new"
            handle = os.open(
                temporary,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=folder,
            )
            try:
                with open(handle, "w", encoding="utf-8", errors="replace") as file:
                    os.fchmod(handle, 0o644)  # Prometheus is another user
                    file.write(body)
                    file.flush()
                    made = os.fstat(handle)
                os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
        self._written, self._last = (path, made), targets

    def _remove(self) -> None:
        """Where no other hub or program has put its own in its place."""
        if self._written is None:
            return
        path, made = self._written
        with contextlib.suppress(OSError), _folder(path.parent) as folder:
            if os.path.samestat(os.stat(path.name, dir_fd=folder, follow_symlinks=False), made):
                os.unlink(path.name, dir_fd=folder)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    """All is done in the folder that was opened, whatever gets its name meanwhile."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def _diags_own(name: str, folder: int) -> bool:
    """Whether it is there, as a diag wrote it: one that was killed leaves its file. Raises OSError for what
    is anybody else's."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.EEXIST, "there is a link, which diag does not follow") from None
    with open(fd, "rb") as file:
        if stat.S_ISREG(os.fstat(fd).st_mode) and _is_ours(file.read(_MOST_BYTES)):
            return True
    raise OSError(
        errno.EEXIST,
        "what is there was not written by diag, and is left alone: name another file, or remove it",
    )


def _is_ours(body: bytes) -> bool:
    """Every group has the label that only diag writes.

    >>> _is_ours(json.dumps(sd_document([Target("a:1", "812", "gpu-17")])).encode()), _is_ours(b"[]"), _is_ours(b"")
    (True, False, False)
    """
    try:
        groups = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(groups, list)
        and bool(groups)
        and all(
            isinstance(group, dict)
            and isinstance(group.get("labels"), dict)
            and _RUN_LABEL in group["labels"]
            for group in groups
        )
    )
