"""The facts of a case, as the engine has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diag.agent.act.gates import Case, Standing, matches
from diag.engine.engine import Engine
from diag.launch.actions import Rule


def cases(
    engine: Engine,
    standing: Standing,
    rules: Sequence[Rule],
    *,
    after: float,
    done: frozenset[Rule] = frozenset(),
    evidence: str = "",
    fence: str = "",
) -> Iterator[Case]:
    """One for each open finding and rule that is about it, in the order of the rules. The engine's lock is held by the
    caller, who looks about once a second: `standing` is told of this look."""
    job, findings = engine.job, engine.active()
    standing.look(engine.now, findings)
    for rule in rules:
        for finding in findings:
            if matches(rule, finding):
                yield Case(
                    rule,
                    finding,
                    engine.now,
                    after,
                    standing.since(finding),
                    job.phase,
                    job.saves.log.current is not None or job.saves.log.unwritten is not None,
                    job.returncode is None and job.interrupted_at is None and not engine.finished,
                    job.iteration,
                    job.acts.earlier,
                    done,
                    evidence,
                    fence,
                )
