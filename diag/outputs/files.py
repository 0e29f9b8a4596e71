"""The files that a run writes for others: findings.jsonl, run.json, and the one by which Prometheus finds the hub."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from diag.launch.runs import start_ticks
from diag.model import Change
from diag.model.observations import EvidenceKept
from diag.outputs.output import Output, OutputContext
from diag.outputs.view.view import json_bytes

if TYPE_CHECKING:
    from diag.launch.service_discovery import SdFile


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

    `problem` is why the last line could not be written, or empty; `lost` counts the lines that are missing.
    Trouble with the file is never raised.
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
        self._torn = written < len(data)
        self.lost += self._torn
        self.problem = f"{self.path}: only {written} of {len(data)} bytes were written" if self._torn else ""


class RunJson(Output):
    """By what diag's own commands find this run. Written anew when its content changes, and at the end."""

    documented = "run.json"

    @classmethod
    def is_wanted(cls, run: OutputContext) -> bool:
        return run.hub.run_dir is not None

    @property
    def place(self) -> str:
        return f"run directory {self.run.hub.run_dir.path}" if self.run.hub.run_dir is not None else ""

    def publish(self) -> None:
        self._write(self.run.url, None, ended=False)

    def kept(self, evidence: EvidenceKept) -> None:
        self.publish()

    def close(self, returncode: int | None, *, ended: bool) -> None:
        if ended:
            self._remember()  # before run.json says that it has ended
        self._write(None, returncode, ended=ended)

    def _write(self, url: str | None, returncode: int | None, *, ended: bool) -> None:
        from diag.launch.launchers.secrets import redacted

        hub, pid = self.run.hub, self.run.pid
        assert hub.run_dir is not None
        certificate = (
            hub.settings.tls_ca or hub.settings.tls_cert
        )  # by which commands on this machine trust the hub
        hub.run_dir.publish({
            "diag_version": hub.version, "argv": redacted(list(self.run.words)), "pid": pid,
            "pid_start_ticks": start_ticks(pid), "hub_start_ticks": start_ticks("self"), "url": url,
            "token": hub.token, "started_at": hub.started_at, "nccl_ras_addr": hub.nccl_ras_address,
            "tls_ca": str(certificate.absolute()) if certificate else None,
            "settings_file": str(hub.settings.file) if hub.settings.file else None,
            "ended": ended, "returncode": returncode, **self._evidence(), **({"outcome": self._outcome()} if ended else {}),
        })  # fmt: skip

    def _evidence(self) -> dict[str, list[str]]:
        with self.run.hub.lock:
            kept = self.run.hub.engine.job.run.evidence
        return {"evidence": [one.path for _, one in kept]} if kept else {}

    def _outcome(self) -> dict[str, object]:
        from diag.outputs.notify.outcome import outcome

        with self.run.hub.lock:
            return outcome(self.run.hub.engine)

    def _remember(self) -> None:
        from diag.engine.comparing.facts import facts

        hub = self.run.hub
        assert hub.run_dir is not None
        with hub.lock:
            found = facts(hub.engine)
        hub.run_dir.remember(found)


class ServiceDiscoveryFile(Output):
    """The file by which Prometheus finds this hub (file_sd), where one was asked for and there is a server."""

    documented = setting = "sd_file"
    _file: SdFile | None = None

    @classmethod
    def is_wanted(cls, run: OutputContext) -> bool:
        return run.hub.settings.sd_file is not None

    def start(self) -> None:
        from diag.launch.service_discovery import SdFile

        path = self.run.hub.settings.sd_file
        assert path is not None
        if not self.run.hub.address:
            self.run.say(f"diag: {path} is not written: without HTTP there is nothing to scrape")
            return
        self._file = SdFile(path, self.run.hub.targets, self.run.say).start()

    def close(self, returncode: int | None, *, ended: bool) -> None:
        if self._file is not None:
            self._file.close()
