from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.feeds.apiserver import Cluster, cluster


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "account").mkdir()
    return tmp_path / "account"


@pytest.fixture
def kube(account: Path) -> Iterator[tuple[Cluster, dict[str, str]]]:
    with cluster(account) as found:
        yield found
