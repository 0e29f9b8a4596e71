"""The cases and the page that is made of them share a process, so that each is asked once."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/mission/" in str(item.path) and (
            item.name.startswith("test_the_person_is_told") or item.path.stem == "test_table"
        ):
            item.add_marker(pytest.mark.xdist_group("mission"))
