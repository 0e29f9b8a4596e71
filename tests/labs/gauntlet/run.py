"""One trial: the job under `diag run` with default settings, what diag says and when, a dump, the recorders
for the others."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from diag_job.faults.truth import TRUTHS, Truth
from tests.liverun import DIAG, JOB, LiveRun, live_run

from . import rivals
from .cases import Trial

__all__ = ["judge_benign", "judge_fault", "run_trial"]

_HOOK = Path(__file__).parent / "in_ranks"
# What they prepare at the start may end the job before their own moment: a /dev/shm too small for NCCL
# itself.
_BEFORE_THEIR_MOMENT = ("shm-full",)
_START_SECONDS = 300.0  # eight ranks that import torch on two shared cores
# after the fault; slow cases have five minutes of patience by design
_FOUND_SECONDS = {False: 120.0, True: 420.0}
_SETTLED_SECONDS = 6.0  # no change for so long: the finding has said what it has to say
_BENIGN_SECONDS = 420.0
_RECORDER_SECONDS = 6.0
_PEER = re.compile(r"\[diag\.fault\] .* peer=(\d+)")
_NOTHING = Truth(())
_HANGS = ("hang", "held-up")


def run_trial(trial: Trial, keep: Path | None, nvrx: Path | None) -> dict[str, Any]:
    """The row of the results. Nothing that the trial started lives on; a trial that went wrong leaves its
    folder in `keep`."""
    began = time.monotonic()
    # Short: UNIX sockets in the run directory have 107 characters for their path.
    folder = Path(tempfile.mkdtemp(prefix="gt-"))
    raw = folder / "raw"
    raw.mkdir()
    path = os.pathsep.join(filter(None, [str(_HOOK), os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": path, "GAUNTLET_DUMPS": str(raw)}
    truth = TRUTHS[trial.fault.name] if trial.fault else _NOTHING
    row: dict[str, Any] = {
        "trial": trial.name,
        "case": trial.case.name,
        "seed": trial.seed,
        "layout": trial.layout,
        "ranks": trial.ranks,
        "fault": str(trial.fault or ""),
        "benign": trial.case.benign,
        "wanted": list(truth.findings),
        "classes": list(truth.classes),
    }
    try:
        with live_run(folder, [*JOB, *trial.words, "--output-dir", str(folder / "out")], env=env) as run:
            row |= judge_benign(trial, run) if trial.case.benign else judge_fault(trial, truth, run, raw)
        if not trial.case.benign:
            right = [frozenset(ranks) for ranks in row["right"]]
            row["rivals"] = (
                _ask_rivals(trial, raw, folder / "filled", right, nvrx)
                if row.get("recorders") is not None
                else {}
            )
    except Exception as error:
        row |= {"ok": False, "error": f"{type(error).__name__}: {error}"[-1500:]}
    row["seconds"] = round(time.monotonic() - began, 1)
    if keep is not None and (not row["ok"] or row.get("resolved")):
        kept = keep / re.sub(r"[^\w.-]+", "-", trial.name)
        shutil.rmtree(kept, ignore_errors=True)
        keep.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, kept)
        row["kept"] = str(kept)
    shutil.rmtree(folder, ignore_errors=True)
    return row


def _loud(run: LiveRun) -> list[dict[str, Any]]:
    return [change for change in run.changes() if change["finding"]["severity"] != "info"]


def judge_benign(trial: Trial, run: LiveRun) -> dict[str, Any]:
    code = run.wait(_BENIGN_SECONDS)
    said = [_short(change["finding"]) for change in _loud(run)]
    struck = trial.fault is None or run.struck_at() is not None
    return {
        "code": code,
        "said": said,
        "struck": struck,
        "ok": code == 0 and not said and struck,
        "false_hang": any(item["id"] == "hang" for item in said),
    }


def _short(finding: dict[str, Any]) -> dict[str, Any]:
    return {key: finding[key] for key in ("id", "class", "cause", "ranks", "confidence", "since", "summary")}


def judge_fault(
    trial: Trial, truth: Truth, run: LiveRun, raw: Path | None, start_seconds: float = _START_SECONDS
) -> dict[str, Any]:
    """`raw`: where the ranks put their Flight Recorders for the other tools; None: nobody asks them."""
    run.until(lambda: run.struck_at() or run.process.poll() is not None, start_seconds)
    announced = run.struck_at() is not None
    struck = run.struck_at() or float(run.run_json()["started_at"])
    peer = _PEER.search(run.text)
    right = trial.right(int(peer[1]) if peer else None)
    end = time.monotonic() + _FOUND_SECONDS[trial.case.slow]
    hit, over = None, False
    while time.monotonic() < end and not over:
        over = run.process.poll() is not None  # before the look: what was written last is seen
        # A warning from before the fault is no answer to it.
        said = [change for change in _loud(run) if change["at"] >= struck]
        hit = next((change for change in said if _is_right(change["finding"], truth, right)), None)
        if hit is not None:
            break
        time.sleep(0.2)
    said = [change for change in _loud(run) if change["at"] >= struck]
    first = next((change for change in said if change["finding"]["id"] in (*truth.findings, *_HANGS)), None)
    row: dict[str, Any] = {
        "right": [sorted(ranks) for ranks in right],
        "struck": announced,
        "over": run.process.poll() is not None,
        "first": _short(first["finding"]) | {"delay": _delay(first, struck)} if first else None,
        "delay": _delay(hit, struck) if hit else None,
    }
    if not row["over"]:
        _settle(run)
        row |= _dump(run)
        row["recorders"] = _collect(raw, trial.ranks) if raw and "hang" in truth.findings else None
    final = row.get("dumped") or [_short(change["finding"]) for change in _standing(run)]
    top = _top(final, truth)
    row["top"] = top
    row["culprit_ok"] = (
        top is not None and _is_wanted(top, truth, classes=False) and frozenset(top["ranks"]) in right
    )
    row["class_ok"] = top is not None and _is_wanted(top, truth)
    row["first_ok"] = first is not None and _is_right(first["finding"], truth, right)
    row["false_hang"] = "hang" not in truth.findings and any(c["finding"]["id"] in _HANGS for c in _loud(run))
    # None of these hangs ends before its trial.
    row["resolved"] = any(
        c["finding"]["id"] in _HANGS and c["change"] == "resolved" and not c.get("replaced")
        for c in _loud(run)
    )
    # A job that ended by itself before its fault proves nothing, whatever was said of it.
    came = announced or (trial.fault is not None and trial.fault.name in _BEFORE_THEIR_MOMENT)
    row["ok"] = came and row["culprit_ok"] and row["class_ok"] and not row["false_hang"]
    return row


def _is_right(finding: dict[str, Any], truth: Truth, right: tuple[frozenset[int], ...]) -> bool:
    return (
        _is_wanted(finding, truth) and finding["severity"] != "info" and frozenset(finding["ranks"]) in right
    )


def _is_wanted(finding: dict[str, Any], truth: Truth, *, classes: bool = True) -> bool:
    """A rank that holds the others up is a hang of which the end is not yet known."""
    if finding["id"] not in _HANGS:
        return finding["id"] in truth.findings
    return "hang" in truth.findings and (not classes or finding["class"] in truth.classes)


def _delay(change: dict[str, Any], struck: float) -> float:
    """From the fault, or from the last progress after it where the job ran on for a while (batches in the
    queue)."""
    return round(max(0.0, change["at"] - max(struck, change["finding"]["since"])), 1)


def _standing(run: LiveRun) -> list[dict[str, Any]]:
    """What was said last of each finding, oldest first."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for change in _loud(run):
        key = (change["finding"]["id"], change["finding"]["subject"])
        last[key] = change
    return [change for change in last.values() if change["change"] != "resolved"]


def _top(findings: list[dict[str, Any]], truth: Truth) -> dict[str, Any] | None:
    """The finding that is scored: of the kind that it should be, else a hang, else the first."""
    for wanted in (truth.findings, _HANGS):
        for finding in findings:
            if finding["id"] in wanted or (finding["id"] in _HANGS and "hang" in wanted):
                return finding
    return findings[0] if findings else None


def _settle(run: LiveRun) -> None:
    seen, quiet_since, end = len(run.changes()), time.monotonic(), time.monotonic() + 20
    while time.monotonic() < end and time.monotonic() - quiet_since < _SETTLED_SECONDS:
        time.sleep(0.2)
        if len(run.changes()) != seen:
            seen, quiet_since = len(run.changes()), time.monotonic()


def _dump(run: LiveRun) -> dict[str, Any]:
    began = time.monotonic()
    words = [*DIAG, "dump", "--all-ranks", "--json", "--run-dir", str(run.run_dir)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    seconds = round(time.monotonic() - began, 2)
    with contextlib.suppress(ValueError):
        document = json.loads(answer.stdout)
        found = [_short(item) for item in document["findings"] if item["severity"] != "info"]
        return {"dump_seconds": seconds, "dumped": found, "dump_missing": document["dump"]["missing"]}
    return {"dump_seconds": None, "dump_error": answer.stderr[-300:]}


def _collect(raw: Path, ranks: int) -> list[int]:
    """Asks every rank for its recorder, and waits for those that can answer."""
    (raw / "go").touch()
    end = time.monotonic() + _RECORDER_SECONDS
    while time.monotonic() < end and len(list(raw.glob("_dump_*"))) < ranks:
        time.sleep(0.1)
    return sorted(int(path.name.removeprefix("_dump_")) for path in raw.glob("_dump_*"))


def _ask_rivals(
    trial: Trial, raw: Path, filled: Path, right: list[frozenset[int]], nvrx: Path | None
) -> dict[str, Any]:
    # Only what they would have: the dumps, none of the helper files.
    dumps = raw.with_name("dumps")
    dumps.mkdir()
    for path in raw.glob("_dump_*"):
        shutil.copy(path, dumps)
    rivals.fill(raw, filled)
    # What they make of gloo's own dumps does not depend on the seed: asked once.
    answers = rivals.ask(dumps if trial.seed == 1 else None, filled, nvrx)
    return {tool: {**answer, "verdict": rivals.judge(answer, right)} for tool, answer in answers.items()}
