"""One trial: a job whose saves grow by a seeded plan, in a real memory cgroup, under `diag run` with default
settings."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.journal import JournalReader, segments
from diag.model.observations import RankExited
from diag.sources.host import exits
from diag.sources.parsers import PARSERS
from diag.state.save_memory import HOST
from diag_job.faults.growing_plan import SAVES, plan_of
from tests.liverun import JOB, LiveRun, live_run

__all__ = ["Trial", "run_trial"]

_STEPS = 5
_MOST_SECONDS = 400.0
_ID = "host-oom-forecast"
_SPARE = 900  # megabytes: what the real job's own memory grew by in 25 steps, and some
_JOBS = {"light": [*JOB, "--step-seconds", "0.4"], "megatron": [sys.executable, "-m", "diag_job.megatron"]}


@dataclass(frozen=True, slots=True)
class Trial:
    """`fits`: whether all saves fit. `job`: light, the bundled small one, or megatron, the real `megatron
    rlhf`."""

    seed: int
    fits: bool
    job: str = "light"

    @property
    def name(self) -> str:
        return f"{self.job}/{'fits' if self.fits else 'too-small'}/{self.seed}"


def run_trial(trial: Trial, keep: Path | None) -> dict[str, Any]:
    """The row of the results. Nothing that the trial started lives on."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fo-"))
    plan = plan_of(trial.seed, fits=trial.fits)
    (folder / "truth.json").write_text(json.dumps(plan.to_json()))  # before the run begins
    spare = _SPARE if trial.fits and trial.job == "megatron" else 0
    words = [
        *_JOBS[trial.job],
        "--iters",
        str(_STEPS * SAVES),
        "--save-steps",
        str(_STEPS),
        "--workers",
        "0",
        "--output-dir",
        str(folder / "out"),
        "--fault",
        f"growing-save:seed={trial.seed},fits={int(trial.fits)},spare={spare}",
    ]
    row: dict[str, Any] = {
        "trial": trial.name,
        "job": trial.job,
        "seed": trial.seed,
        "fits": trial.fits,
        "kind": plan.kind,
        "place": plan.place,
        "pace": plan.pace,
        "seconds_staging": round(plan.saves[0].seconds, 1),
        "fails_at": plan.fails_at,
        "cache": plan.cache,
        "room": round(plan.room, 3) if trial.fits else None,
    }
    try:
        with live_run(folder, words) as run:
            row["code"] = run.wait(_MOST_SECONDS)
            row |= _judged(trial, run, folder)
    except Exception as error:
        row |= {"ok": False, "as_planned": False, "error": f"{type(error).__name__}: {error}"[-800:]}
    row["seconds"] = round(time.monotonic() - began, 1)
    if keep is not None:
        kept = keep / trial.name.replace("/", "-")
        shutil.rmtree(kept, ignore_errors=True)
        keep.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / "out", ignore_errors=True)
        shutil.move(folder, kept)
    shutil.rmtree(folder, ignore_errors=True)
    return row


def _judged(trial: Trial, run: LiveRun, folder: Path) -> dict[str, Any]:
    events = [json.loads(line) for line in (folder / "growing-save.jsonl").read_text().splitlines()]
    stages = [event for event in events if event["event"] == "stage"]
    assert run.run_dir is not None
    killed, told = _replayed(run.run_dir, stages)
    changes = [change for change in run.changes() if change["finding"]["id"] == _ID]
    opened = [change for change in changes if change["change"] == "opened"]
    peaks = _peaks(events, stages)
    row: dict[str, Any] = {
        "saves": len(stages),
        "warnings": [
            [
                round(change["at"] - events[0]["at"], 1),
                change["finding"]["severity"],
                change["finding"]["summary"][:160],
            ]
            for change in opened
        ],
        "errors": [round(guess / peaks[number] - 1, 4) for number, guess in told.items() if number in peaks],
    }
    fails_at = plan_of(trial.seed, fits=trial.fits).fails_at
    ended = run.process.returncode == 0 and len(stages) == SAVES
    row |= {
        "killed": killed is not None,
        "as_planned": ended if trial.fits else killed is not None and len(stages) == fails_at,
    }
    # The real job's own memory grows too, which no plan knows: what happened is the truth there.
    counts = row["as_planned"] or (trial.job == "megatron" and (killed is not None or ended))
    if killed is None:
        return row | {"ok": counts and not opened}
    standing = _standing(changes, killed)
    row["ok"] = counts and standing is not None
    row["early"] = max(0, len(opened) - (standing is not None))
    if standing is not None:
        row["lead"] = round(killed - standing["at"], 2)
        row["in_save"] = standing["at"] >= stages[-1]["at"]
        word = standing["finding"]["summary"].partition("will need ")[2].split(" GiB")[0]
        if word:
            row["warning_error"] = round(float(word) * (1 << 30) / peaks[len(stages)] - 1, 4)
    return row


def _standing(changes: list[dict[str, Any]], killed: float) -> dict[str, Any] | None:
    """The warning that was open when the save was killed: as it was first said."""
    open_now = None
    for change in changes:
        if change["at"] > killed:
            break
        if change["change"] == "opened":
            open_now = change
        elif change["change"] == "resolved":
            open_now = None
    return open_now


def _peaks(events: list[dict[str, Any]], stages: list[dict[str, Any]]) -> dict[int, float]:
    """What each save needs: by the fault's own reading in the step before it, and the plan."""
    peaks = {}
    for stage in stages:
        before = [event for event in events if event["event"] == "step" and event["at"] <= stage["at"]]
        peaks[stage["number"]] = before[-1]["needed"] + stage["staged"] + stage["own"] / 2
    return peaks


def _replayed(run_dir: Path, stages: list[dict[str, Any]]) -> tuple[float | None, dict[int, int]]:
    """When the kernel killed, and the peak that the live engine held likely just before each save: its
    journal tells both."""
    engine, left, told, killed = Engine(PARSERS, make_detectors(), PRECEDENCE), list(stages), {}, None
    for record in JournalReader(segments(run_dir)):
        while left and record.at > left[0]["at"]:
            outlook = engine.job.saves.memory.outlook(engine.now, engine.job.run.argv)
            # before the limit is set there is only the machine's
            if outlook is not None and outlook[0].path != HOST:
                told[left[0]["number"]] = outlook[1].peak
            left.pop(0)
        if record.source == exits.SOURCE:
            for fact in PARSERS[exits.SOURCE](record):
                if isinstance(fact, RankExited) and fact.signal == 9 and killed is None:
                    killed = record.emitted or record.at
        engine.feed(record)
    return killed, told
