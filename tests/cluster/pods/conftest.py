"""Podman, set up once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.pods import image
from tests.cluster.pods.podman import Podman


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    reason = image.why_not()
    if reason:
        pytest.skip(reason)
    ready = Podman()
    ready.clean()
    ready.load()
    yield ready
    ready.clean()
