"""Hubs that have joined each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag.agent.cluster import member as member_module
from tests.cluster_unit.hubs import OneNode


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[OneNode]]]:
    monkeypatch.setattr(member_module, "_BACK_SECONDS", 1.0)
    made: list[OneNode] = []

    def of(count: int, tls: tuple[Path, Path] | None = None, ca: Path | None = None) -> list[OneNode]:
        nodes = [OneNode(number, tmp_path, tls=tls).start() for number in range(count)]
        made.extend(nodes)
        for node in nodes:
            node.join(nodes[0], count, ca)
        return nodes

    yield of
    for node in made:
        node.die()
