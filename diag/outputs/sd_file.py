"""The file by which Prometheus finds this hub (file_sd)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diag.outputs.output import Output

if TYPE_CHECKING:
    from diag.launch.service_discovery import SdFile
    from diag.outputs.output import OutputContext


class ServiceDiscoveryFile(Output):
    """Where one was asked for and there is a server to find."""

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
