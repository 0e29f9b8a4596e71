from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netlab import Lab, make_lab, why_not


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Four nodes, made anew for each test: a third of a second."""
    pytest.importorskip(
        "megatron.core", reason="the bundled job needs requirements/job.txt (make test-cluster installs it)"
    )
    if reason := why_not("tc", "nft"):
        pytest.skip(reason)
    with make_lab(4, tmp_path / "lab") as lab:
        yield lab
