"""Over all recorded runs, honest and hung: what would be done if nothing had to stand for any time."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.agent.act.cases import cases
from diag.agent.act.gates import Standing, decide
from diag.engine.engine import Engine
from diag.engine.replay import Evidence, _policy
from diag.launch.actions import read_rules
from diag.sources.host import run as run_source
from diag.sources.parsers import PARSERS

CAPTURES = Path(__file__).parents[1] / "captures"
RULES = read_rules(["hang=restart:9", "hang=end:75"])
# Those that really hung, for a reason that the kernel or the communicators prove.
HUNG = {
    "gpu-loops/opposite-groups": ("comm_init", (0, 1)),
    "kernel-waits/pipe": ("peer_not_joined", (1,)),
}


def recorded() -> list[str]:
    folders = {path.parent for path in CAPTURES.rglob("journal-*.jsonl.gz")}
    return sorted(str(folder.relative_to(CAPTURES)) for folder in folders)


def done(folder: Path) -> set[tuple[str, tuple[int, ...]]]:
    """Class and culprits of all that would be acted on, with evidence always there and `--after 0`."""
    evidence = Evidence([folder])
    engine: Engine | None = None
    standing, found, looked = Standing(), set(), 0.0
    for record in evidence:
        if engine is None or run_source.is_another_attempt(record):
            engine, standing = _policy(evidence, record).engine(None, PARSERS), Standing()
        engine.feed(record)
        if engine.now - looked >= 1.0 or engine.now < looked:
            looked = engine.now
            for case in cases(engine, standing, RULES, after=0.0, evidence="there"):
                if decide(case).acts:
                    found.add((case.finding.klass, case.finding.ranks))
    return found


@pytest.mark.parametrize("name", recorded())
def test_only_the_runs_that_really_hung_would_be_acted_on(name: str) -> None:
    expected = {HUNG[name]} if name in HUNG else set()

    assert done(CAPTURES / name) == expected
