"""What the job prints and who reads it: floods, a reader that goes away, a terminal that is closed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

from tests.labs.harm.judge import Outcome
from tests.labs.harm.trial import JOB, Running

# A flood through diag takes so much longer than into a file at most. On two cores three trials share, and
# diag reads along.
_SLOWEST = 1.5


def close_reader(run: Running, chance: random.Random) -> str:
    """`diag run ... | head -1`: alone the job would be killed by SIGPIPE at its next line; under diag it goes
    on to its end."""
    lines = chance.randrange(0, 3)
    run.until(lambda: run.terminal.exists() and run.terminal.read_bytes().count(b"\n") > lines)
    run.close_reader()
    return f"the reader of standard output went away after {lines} lines"


def close_terminal(run: Running, chance: random.Random) -> str:
    """A connection that breaks: the kernel sends SIGHUP to the leader of the session, which is diag as it
    would be the job."""
    if _is_late(run):
        return "too late: the job was at its end"
    run.close_reader()
    return "the terminal was closed"


def hang_up(run: Running, chance: random.Random) -> str:
    # A rank that has not yet said what it does with the signal would be ended by it, as without diag.
    run.until(
        lambda: all(b"rank %d " % rank in run.terminal.read_bytes() for rank in range(int(run.job_words[0])))
    )
    if _is_late(run):
        return "too late: the job was at its end"
    os.killpg(run.carrier().pid, signal.SIGHUP)
    return "SIGHUP to the group"


def _is_late(run: Running) -> bool:
    """What has ended is told of no signal, and diag alone would be ended by it."""
    return any(run.results.glob("rank-*"))


def hangup_of_leader(run: Running, outcome: Outcome) -> None:
    """As without diag: the launcher is told once, its ranks not at all."""
    _judge_hangups(run, outcome, [])


def one_hangup_each(run: Running, outcome: Outcome) -> None:
    """As without diag: the kernel tells each process of the group once."""
    _judge_hangups(run, outcome, [signal.SIGHUP])


def _judge_hangups(run: Running, outcome: Outcome, wanted: list[int]) -> None:
    if outcome.did.startswith("too late"):
        return
    for told in run.told:
        if told["signals"] != wanted:
            outcome.wrong.append(f"rank {told['rank']} got the signals {told['signals']}, not {wanted}")
    launcher = run.results / "launcher-signals"
    got = json.loads(launcher.read_text()) if launcher.exists() else []
    if got != [signal.SIGHUP]:
        outcome.wrong.append(f"the launcher got the signals {got}, not one SIGHUP")


def flood_ratio(run: Running, outcome: Outcome) -> None:
    """The same job once more, alone, into a file: how long its flood takes there."""
    if not run.told or run.told[0]["flooded"] is None:
        return
    alone = run.results.parent / "alone"
    alone.mkdir()
    words = [sys.executable, str(JOB), str(alone), *run.job_words]
    with open(alone / "out", "wb") as out:
        subprocess.run(words, stdout=out, check=False, timeout=120)
    (alone / "out").unlink()
    (told,) = [json.loads(path.read_text()) for path in alone.glob("rank-0-0")]
    outcome.numbers["flood_seconds"] = round(run.told[0]["flooded"], 3)
    outcome.numbers["flood_seconds_alone"] = round(told["flooded"], 3)
    outcome.numbers["slowdown"] = round(run.told[0]["flooded"] / told["flooded"], 3)
    if outcome.numbers["slowdown"] > _SLOWEST:
        outcome.wrong.append(f"the flood took {outcome.numbers['slowdown']:.2f} times as long as alone")


def wait_for_all(run: Running, chance: random.Random) -> str:
    """Hundreds of ranks at once: how long diag takes to have them all, and whether it can say so meanwhile."""
    began = time.monotonic()
    most, answered = 0, 0
    while (
        run.process.poll() is None and not (run.results / "ended").exists() and time.monotonic() - began < 60
    ):
        try:
            found = json.loads(run.ask("/ranks", wait=5.0).partition(b"\r\n\r\n")[2])
            most, answered = max(most, len(found["ranks"])), answered + 1
        except (OSError, ValueError, KeyError, TimeoutError):
            pass
        run.pause(0.5)
    run.numbers["ranks_seen"] = most
    return f"{most} ranks seen, {answered} answers of the hub"


def all_ranks_seen(run: Running, outcome: Outcome) -> None:
    began = [told["at"] for told in run.told]
    outcome.numbers |= {
        **run.numbers,
        "ranks": len(began),
        "started_within": round(max(began) - min(began), 2) if began else 0.0,
    }
