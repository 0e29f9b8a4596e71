"""What a run came to, for its last message: from the hub's engine, or from the journal of a hub that was killed (a process
of its own: a journal may be large)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from diag.detectors.checkpoint.going_on import last_whole
from diag.engine.engine import Engine


def outcome(engine: Engine) -> dict[str, Any]:
    """The last step, the last whole checkpoint with the flags to go on from it, and what was open at the end, as far as
    it is known. The engine's lock is held by the caller."""
    job = engine.job
    found: dict[str, Any] = {}
    if job.iteration is not None:
        total = job.progress.total_iterations
        found["step"] = job.progress.step_words() + (f" of {total}" if total else "")
    if (whole := last_whole(job)) is not None:
        folder, flags = whole
        found["checkpoint"] = {"path": folder.path, "iteration": folder.iteration, "flags": flags}
    if action := job.acts.ends_the_job:
        texts = [step.fact.text for step in job.acts.steps if step.fact.what == "acts"]
        found["acted"] = {"action": action, "text": texts[-1] if texts else ""}
    found["open"] = [
        {
            "change": "opened",
            "finding": {
                "id": one.id,
                "class": one.klass,
                "severity": one.severity.value,
                "ranks": list(one.ranks),
            },
        }
        for one in engine.active()
        if one.severity.counts
    ]
    return found


def main() -> int:
    from diag.engine.replay import replay

    engine, _, _ = replay([Path(sys.argv[1])])
    json.dump(outcome(engine), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
