"""Which versions the job runs on: as its processes show them, and its log."""

from __future__ import annotations

from diag.model.observations import NcclVersion, SoftwareSeen, VersionSeen
from diag.state.reducer import Reducer, takes

_MOST_TOLD = 100


class Software(Reducer):
    """Owns the newest reading, of the first rank of a node, and what the log tells."""

    def __init__(self) -> None:
        self.seen: SoftwareSeen | None = None
        self.told: dict[str, str] = {}  # by the log: package -> version

    def versions(self) -> dict[str, str]:
        """Of python, kernel, driver and of what the log tells, those that are known."""
        found = dict(self.told)
        if self.seen is not None:
            known = {"python": self.seen.python, "kernel": self.seen.kernel, "driver": self.seen.driver}
            found |= {name: version for name, version in known.items() if version}
        return found

    @takes(SoftwareSeen)
    def _seen(self, at: float, fact: SoftwareSeen) -> None:
        if self.seen is None or fact.packages is not None or self.seen.packages is None:
            self.seen = fact

    @takes(VersionSeen)
    def _told(self, at: float, fact: VersionSeen) -> None:
        self._tell(fact.package, fact.version)

    @takes(NcclVersion)
    def _nccl(self, at: float, fact: NcclVersion) -> None:
        self._tell("nccl", fact.version)
        self._tell("cuda", fact.cuda)

    def _tell(self, package: str, version: str) -> None:
        if version and (package in self.told or len(self.told) < _MOST_TOLD):
            self.told[package] = version
