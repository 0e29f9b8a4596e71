from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notify.services import Services, services


@pytest.fixture
def standins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """The services, to which everything that is started from here comes."""
    with services(tmp_path) as (kept, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield kept
