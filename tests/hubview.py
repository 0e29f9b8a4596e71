"""The part of a `HubView` that is about other nodes, of a hub that has none."""

from __future__ import annotations

from typing import Any

from diag.outputs.view.view import ClusterFacts

__all__ = ["AloneHub"]


class AloneHub:
    """Takes digests, as far as its face goes, and has nobody to tell of."""

    takes_digests = True
    recorded = ""

    def take_digest(self, document: dict[str, Any], address: str) -> dict[str, Any] | None:
        return None

    def refuse_digest(self, address: str) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        return []

    def other_ranks(self) -> list[dict[str, Any]]:
        return []

    def cluster_facts(self) -> ClusterFacts | None:
        return None
