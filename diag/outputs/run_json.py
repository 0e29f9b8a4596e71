"""run.json: by what diag's own commands find this run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diag.launch.runs import start_ticks
from diag.outputs.output import Output

if TYPE_CHECKING:
    from diag.outputs.output import OutputContext, RunHub


class RunJson(Output):
    """Written anew when what it says has changed, and at the end."""

    documented = "run.json"

    @classmethod
    def is_wanted(cls, run: OutputContext) -> bool:
        return run.hub.run_dir is not None

    @property
    def place(self) -> str:
        return f"run directory {self.run.hub.run_dir.path}" if self.run.hub.run_dir is not None else ""

    def publish(self) -> None:
        self._write(self.run.url, None, ended=False)

    def close(self, returncode: int | None, *, ended: bool) -> None:
        self._write(None, returncode, ended=ended)

    def _write(self, url: str | None, returncode: int | None, *, ended: bool) -> None:
        from diag.launch.launchers import redacted

        hub, pid = self.run.hub, self.run.pid
        assert hub.run_dir is not None
        hub.run_dir.publish({
            "diag_version": hub.version, "argv": redacted(list(self.run.words)), "pid": pid,
            "pid_start_ticks": start_ticks(pid), "hub_start_ticks": start_ticks("self"), "url": url,
            "token": hub.token, "started_at": hub.started_at, "nccl_ras_addr": hub.nccl_ras_address,
            "tls_ca": _own_certificate(hub),
            "settings_file": str(hub.settings.file) if hub.settings.file else None,
            "ended": ended, "returncode": returncode,
        })  # fmt: skip


def _own_certificate(hub: RunHub) -> str | None:
    """By which commands on this machine trust the hub."""
    path = hub.settings.tls_ca or hub.settings.tls_cert
    return str(path.absolute()) if path is not None else None
