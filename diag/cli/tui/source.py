"""Where the screen has its state from: evidence on disk, or a hub (`live`). Both are asked the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from diag.outputs.view.parts import Unread
from diag.text.errors import DiagError


@dataclass(frozen=True, slots=True)
class Link:
    """How we know what is shown. `word` is LIVE, LOST, ENDED or RECORDED; `about` says more; `command` is
    what to type then."""

    word: str
    about: str = ""
    command: str = ""


class Inbox:
    """What the source has sent and the screen has not taken yet; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unread = Unread()
        self._link: Link | None = None

    def put(self, part: str, value: Any) -> None:
        """Raises ValueError where rows are none."""
        with self._lock:
            if part != "ranks":
                self._unread.put(part, value)
                return
            try:
                self._unread.put_rows(value["rows"], whole=bool(value.get("whole")))
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"ranks: {type(error).__name__}: {error}") from None

    def put_link(self, link: Link) -> None:
        with self._lock:
            self._link = link

    def take(self) -> tuple[dict[str, Any], Link | None]:
        with self._lock:
            link, self._link = self._link, None
            return self._unread.take(), link


class Source(Protocol):
    """All but `start` and `stop` may wait, and raise DiagError; they are called from any thread."""

    inbox: Inbox

    def first(self) -> dict[str, Any]:
        """The state as it is, at once."""
        ...

    def start(self, wake: Callable[[], None]) -> None:
        """From now on: `wake` is called, from any thread, when there is something in the inbox."""
        ...

    def stop(self) -> None: ...

    def stacks(self, rank: int, url: str = "") -> dict[str, Any]:
        """`diag.stacks/1`; `url` of the hub that has them, where that is another one."""
        ...

    def dump(self, columns: int, lang: str) -> dict[str, Any]: ...


class Recorded:
    """Evidence on disk, read once."""

    def __init__(self, paths: Sequence[Path]) -> None:
        from diag.cli.recorded import RecordedView
        from diag.engine.replay import replay
        from diag.text.progress_line import Progress

        progress = Progress()
        try:
            engine, _, self.notes = replay(list(paths), progress, None)
        finally:
            progress.close()
        self._view = RecordedView(engine, paths)
        self._paths = paths
        self.inbox = Inbox()

    def first(self) -> dict[str, Any]:
        import json

        from diag.outputs.view import parts
        from diag.outputs.view.view import json_bytes

        state = {"schema": "diag.state/1", **parts.with_others(parts.own_parts(self._view), self._view)}
        document: dict[str, Any] = json.loads(json_bytes(state))  # as a hub would send it
        return document

    def start(self, wake: Callable[[], None]) -> None:
        self.inbox.put_link(Link("RECORDED", ", ".join(map(str, self._paths))))
        wake()

    def stop(self) -> None:
        pass

    def stacks(self, rank: int, url: str = "") -> dict[str, Any]:
        from diag.outputs.view.view import stacks_json

        try:
            return stacks_json(self._view.engine, rank)
        except KeyError:
            raise DiagError(f"rank {rank} is not in the evidence") from None

    def dump(self, columns: int, lang: str) -> dict[str, Any]:
        raise DiagError("recorded evidence: there is no live process to read", hint="s shows its stacks")
