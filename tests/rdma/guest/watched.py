"""`diag run` around a scenario's job, inside the machine: until what it must find is found, and long enough to find more."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.rdma.guest import network
from tests.rdma.guest.shell import as_user, until
from tests.rdma.scenarios import Scenario

_RUNS = Path("/runs")
# Deadlines, for a machine that others use too: under emulation diag's start takes 5 s of CPU by itself.
_START_SECONDS = 240.0
_FIND_SECONDS = 120.0
# After a dump, in which everything was read at least once: ports are read again (every 10 s), and all checks are made.
_QUIET_SECONDS = 12.0


def watch(scenario: Scenario) -> dict[str, Any]:
    """{"changes": lines of findings.jsonl, "terminal": what was printed, "dump": of `diag dump`, "exit": code, "problem": what
    did not come in time, "run": the run directory (tar, base64)}."""
    run = _Run(scenario)
    problem, dump = "", {}
    try:
        until(run.trains, _START_SECONDS, "two ranks that train")
        until(run.is_watched, _START_SECONDS, "both ranks in diag's page")
        dump = run.dump()
        if scenario.down == "during":
            network.set_link(0, up=False)
        quiet = time.monotonic() + _QUIET_SECONDS
        if scenario.wanted:
            until(lambda: {wanted.id for wanted in scenario.wanted} <= run.found(), _FIND_SECONDS, "what must be found")
        until(lambda: time.monotonic() > quiet, _QUIET_SECONDS + 5, "time")
    except (TimeoutError, RuntimeError) as error:
        problem = str(error)
    problem += run.end()
    return {"changes": run.changes(), "terminal": run.talk(), "dump": dump, "exit": run.process.returncode,
            "problem": problem, "run": run.packed()}  # fmt: skip


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.root, self.terminal = _RUNS / scenario.name, Path(f"/tmp/{scenario.name}.txt")
        self.root.mkdir(parents=True)
        shutil.chown(self.root, scenario.user)
        diag = [sys.executable, "-m", "diag", "run", "--port", "0", "--run-root", str(self.root)]
        job = [sys.executable, "-m", "tests.rdma.guest.job", scenario.name]
        words = [*as_user(scenario.user, None), *diag, "--", *job]
        if scenario.down == "before":
            network.set_link(0, up=False)
        with open(self.terminal, "wb") as file:
            self.process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    def text(self) -> str:
        return self.terminal.read_text("utf-8", "replace")

    def talk(self) -> str:
        """What is on the terminal but steps."""
        return "".join(line for line in self.text().splitlines(keepends=True) if "] iteration " not in line)[-5000:]

    def trains(self) -> bool:
        return all(f"[rank{rank}] iteration" in self.text() for rank in (0, 1))

    def is_watched(self) -> bool:
        """Whether diag knows both ranks. Asked in this process: each start of Python costs the machine half a second."""
        found = re.search(r"page (http://[\d.:]+)", self.text())
        if found is None:
            return False
        try:
            with urllib.request.urlopen(f"{found[1]}/findings", timeout=30) as answer:
                return bool(json.load(answer)["job"]["ranks_seen"] == len(self.scenario.ranks))
        except OSError:  # it does not listen yet
            return False

    def dump(self) -> dict[str, Any]:
        (run_dir,) = self.root.iterdir()
        words = [sys.executable, "-m", "diag", "dump", "--json", "--seconds", "60", "--run-dir", str(run_dir)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 10):
            raise RuntimeError(f"diag dump ended with {done.returncode}: {done.stderr}")
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def changes(self) -> list[dict[str, Any]]:
        lines = []
        for path in self.root.glob("*/findings.jsonl"):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # torn: it is being written
                    lines.append(json.loads(line))
        return lines

    def found(self) -> set[str]:
        return {change["finding"]["id"] for change in self.changes() if change["change"] != "resolved"}

    def end(self) -> str:
        """As a person ends it. Returns what went wrong with that."""
        self.process.send_signal(signal.SIGTERM)
        problem = ""
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            problem = "; diag run did not end within 60 s of SIGTERM"
        if self.scenario.down:
            network.set_link(0, up=True)
        return problem

    def packed(self) -> str:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
            for path in sorted(self.root.glob("*/*")):
                if path.is_file() and path.name.startswith(("journal-", "run.json", "findings")):
                    tar.add(path, path.relative_to(self.root), recursive=False)
        return base64.b64encode(buffer.getvalue()).decode()
