"""Every capture is reported as it was: as text, as changes over time, and as JSON. Where a difference is
meant, `make goldens` writes it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.goldens import KEPT, Golden, goldens, kept, replayed

kept_once = cache(kept)


@pytest.mark.parametrize("golden", [pytest.param(one, id=one.name) for one in goldens()])
def test_capture_is_reported_as_before(golden: Golden, tmp_path: Path) -> None:
    assert replayed(golden, tmp_path) == kept_once(golden.group).get(golden.name), "if meant: make goldens"


def test_nothing_is_kept_of_captures_that_are_gone() -> None:
    names = {path.stem: set(kept_once(path.stem)) for path in KEPT.glob("*.txt")}

    assert names == {
        group: {one.name for one in goldens() if one.group == group}
        for group in {one.group for one in goldens()}
    }
