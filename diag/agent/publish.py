"""What other programs find a hub by: run.json for diag's own commands, a file_sd file for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from diag.launch.runs import start_ticks

if TYPE_CHECKING:
    from diag.agent.hub import Hub
    from diag.launch.rundir import RunDir
    from diag.launch.service_discovery import SdFile
    from diag.settings import Settings

__all__ = ["publish", "start_sd_file"]


def publish(
    hub: Hub, run_dir: RunDir | None, url: str | None, words: list[str], pid: int, *, ended: int | None = None
) -> None:
    """Write run.json, by which other commands find this run."""
    if run_dir is None:
        return
    from diag.launch.launchers import redacted

    run_dir.publish({
        "diag_version": hub.version, "argv": redacted(words), "pid": pid, "pid_start_ticks": start_ticks(pid),
        "hub_start_ticks": start_ticks("self"), "url": url, "token": hub.token, "started_at": hub.started_at,
        "nccl_ras_addr": hub.ras.address, "tls_ca": _own_certificate(hub),
        "settings_file": str(hub.settings.file) if hub.settings.file else None,
        "ended": ended is not None, "returncode": ended,
    })  # fmt: skip


def _own_certificate(hub: Hub) -> str | None:
    """By which commands on this machine trust the hub."""
    path = hub.settings.tls_ca or hub.settings.tls_cert
    return str(path.absolute()) if path is not None else None


def start_sd_file(hub: Hub, settings: Settings, say: Callable[[str], None]) -> SdFile | None:
    """The file by which Prometheus finds this hub, where one was asked for and there is a server to find."""
    if settings.sd_file is None:
        return None
    from diag.launch.service_discovery import SdFile

    if not hub.address:
        say(f"diag: {settings.sd_file} is not written: without HTTP there is nothing to scrape")
        return None
    return SdFile(settings.sd_file, hub, say).start()
