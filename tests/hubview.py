"""The part of a `HubView` that is about other nodes, of a hub that has none."""

from __future__ import annotations

from diag.cli.recorded import NoOtherNodes

__all__ = ["AloneHub"]


class _Alone(NoOtherNodes):
    """Takes digests, as far as the page goes, and has nobody to report them to."""

    takes_digests = True


class AloneHub:
    recorded = ""

    @property
    def cluster(self) -> NoOtherNodes:
        if "_cluster" not in vars(self):
            self._cluster = _Alone()
        return self._cluster
