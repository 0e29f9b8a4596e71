"""`make demo`: the real `megatron rlhf` hangs at its first batch under `diag run`; diag says why; then it is
let go.

Everything shown is live: the verdict, `diag dump --all-ranks` from a second process, and the metrics over
HTTP.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from diag.text.units import format_seconds
from diag_job import assets
from diag_job.faults.runtime import release

_START_SECONDS = 240.0  # imports of ms-swift on a slow, busy machine
_FIND_SECONDS = 90.0
_END_SECONDS = 240.0
_STOP_SECONDS = 60.0  # torchrun gives its ranks half of it
_SHOWN_METRICS = (
    "diag_rank_state{",
    "diag_finding_active{",
    "diag_stack_unchanged_seconds{",
    "diag_agent_resident_memory",
)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="diag-demo-"))
    _say("making a tiny Qwen3-MoE, its tokenizer and 512 preference pairs (once)")
    assets.make(assets.default_folder())
    command = [
        sys.executable,
        "-m",
        "diag_job.megatron",
        "--nproc",
        "2",
        "--iters",
        "6",
        "--output-dir",
        str(folder / "out"),
        "--fault",
        "data-hang:rank=1,step=0",
    ]
    line = ["diag", "run", "--port", "0", "--run-root", str(folder / "runs"), "--", *command]
    _say(
        "diag run -- megatron rlhf --rlhf_type dpo ...   (two ranks; the first batch of rank 1 will never come)"
    )
    run = subprocess.Popen(
        [sys.executable, "-m", "diag", *line[1:]], env={**os.environ, "DIAG_FAULT_DIR": str(folder)}
    )
    try:
        finding = _await_hang(run, folder)
        _say("meanwhile, in another terminal: diag dump --all-ranks")
        run_json = json.loads(next((folder / "runs").glob("*/run.json")).read_text())
        subprocess.run(
            [sys.executable, "-m", "diag", "dump", "--all-ranks", "--run-dir", str(_run_dir(folder))],
            check=False,
        )
        _say(f"and what Prometheus would scrape from {run_json['url']}/metrics:")
        _show_metrics(run_json["url"])
        _say("now the data source answers again: the job goes on and finishes")
        release(folder)
        code = run.wait(_END_SECONDS)
    finally:
        if run.poll() is None:
            run.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(_STOP_SECONDS)  # nothing of it outlives the demo
    if code != 0:
        _say(
            f"the job ended with exit code {code}: this is not what the demo should show; see {_run_dir(folder)}"
        )
        return 1
    waited = finding["opened_at"] - finding["finding"]["since"]
    _say(
        f"the hang was named {format_seconds(waited)} after the last progress: rank {finding['finding']['ranks'][0]}, "
        f"{finding['finding']['class']}. The job then ran to its end, exit code 0."
    )
    _say(f"run directory: {_run_dir(folder)}   (look again: diag replay {_run_dir(folder)})")
    _say(f"page and metrics were at {run_json['url']} and {run_json['url']}/metrics")
    return 0


def _await_hang(run: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """The change that opened the hang. RuntimeError when it does not come."""
    end = time.monotonic() + _START_SECONDS + _FIND_SECONDS
    while time.monotonic() < end and run.poll() is None:
        for path in (folder / "runs").glob("*/findings.jsonl"):
            for line in path.read_text().splitlines():
                change: dict[str, Any] = json.loads(line)
                if change["finding"]["id"] == "hang" and change["change"] == "opened":
                    return change
        time.sleep(0.2)
    raise RuntimeError(f"no hang was found (job's exit code: {run.poll()}); see {_run_dir(folder)}")


def _run_dir(folder: Path) -> Path:
    return next(iter((folder / "runs").glob("*/run.json")), folder / "runs" / "none").parent


def _show_metrics(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(_SHOWN_METRICS) and not line.endswith(" 0.0"):
                print("   ", line)
    sys.stdout.flush()


def _say(text: str) -> None:
    print(f"\n=== {text}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
