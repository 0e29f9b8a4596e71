"""Tests of one installed system (Slurm, podman, a Prometheus) share it and stay with one worker; labs of
namespaces are apart."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


# First: xdist reads the marks in the same hook, and comes before the conftest of a folder named on the
# command line.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            part = item.path.relative_to(HERE).parts[0]
            if part != "netns":
                item.add_marker(pytest.mark.xdist_group(part))
