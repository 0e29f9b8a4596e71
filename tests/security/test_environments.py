"""CMD comes through as it is alone, whatever its environment does to diag."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from tests.liverun import live_run
from tests.security.environments import ENVIRONMENTS, Environment, compare, missing

pytestmark = [pytest.mark.live, pytest.mark.hardening]


@pytest.mark.parametrize("what", ENVIRONMENTS, ids=lambda what: re.sub(r"\W+", "-", what.name))
def test_command_comes_through_as_alone(what: Environment) -> None:
    if why := missing(what):
        pytest.skip(why)

    alone, under = compare(what)

    assert (under.code, under.out, under.err) == (alone.code, alone.out, alone.err), under.said
    assert under.variables == alone.variables
    assert "Traceback" not in under.said and "Please report" not in under.said
    if not what.unwatched:
        assert "unwatched" not in under.said and "the hub" not in under.said


def test_every_environment_is_in_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/evidence/environments.md").read_text()

    assert [what.name for what in ENVIRONMENTS if f"| {what.name} |" not in page] == []


def test_carrier_has_no_third_party_code_in_it(tmp_path: Path) -> None:
    with live_run(tmp_path, ["sleep", "60"]) as run:
        run.run_json()
        maps = psutil.Process(run.process.pid).memory_maps()

    assert [one.path for one in maps if "site-packages" in one.path] == []
