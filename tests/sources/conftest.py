from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.blocked import Start, starting


@pytest.fixture
def start() -> Iterator[Start]:
    with starting() as started:
        yield started
