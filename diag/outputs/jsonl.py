"""Changes as JSON lines in a file. Trouble with the file is told once, to whoever asks, and never raised."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from diag.model import Change
from diag.outputs.output import Output
from diag.outputs.view.view import json_bytes

if TYPE_CHECKING:
    from diag.outputs.output import OutputContext


class FindingsFile(Output):
    """findings.jsonl of the run directory."""

    documented = "findings.jsonl"

    def __init__(self, run: OutputContext) -> None:
        super().__init__(run)
        assert run.hub.run_dir is not None
        self._file = JsonlOutput(run.hub.run_dir.path / "findings.jsonl")

    @classmethod
    def is_wanted(cls, run: OutputContext) -> bool:
        return run.hub.run_dir is not None

    def change(self, change: Change) -> None:
        self._file.write([change])

    def close(self, returncode: int | None, *, ended: bool) -> None:
        self._file.close()


class JsonlOutput:
    """Appends each change as one line, at once, for `tail -f` and for scripts.

    `problem` says why the last line could not be written, or is empty; `lost` counts the lines that are
    missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self.lost = 0
        self._file: int | None = None
        self._closed = False
        self._torn = False

    def write(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._write_line(json_bytes(change.to_json()) + b"\n")

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            try:
                os.close(self._file)
            except OSError as error:  # a network file system reports a full disk here
                self.problem = f"{self.path}: {error.strerror}"
            self._file = None

    def _write_line(self, line: bytes) -> None:
        try:
            if self._closed:
                raise OSError(0, "written after it was closed")
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            # A line that a full disk cut short must not swallow the next one.
            data = b"\n" + line if self._torn else line
            written = os.write(self._file, data)
        except OSError as error:
            self.lost += 1
            self.problem = f"{self.path}: {error.strerror}"
            return
        if written < len(data):
            self._torn = True
            self.lost += 1
            self.problem = f"{self.path}: only {written} of {len(data)} bytes were written"
            return
        self._torn = False
        self.problem = ""
