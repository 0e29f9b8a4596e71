"""A job under `diag run` inside the machine: started, asked, ended, and its run directory packed."""

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
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_RUNS = Path("/runs")


class Run:
    """`prefix` is put before diag's own command: another user, another cgroup. The driver's own safety from
    the OOM killer is not inherited."""

    def __init__(self, name: str, job: Sequence[str], prefix: Sequence[str] = (), user: int = 0) -> None:
        self.root, self.terminal = _RUNS / name, Path(f"/tmp/{name}.txt")
        self.root.mkdir(parents=True)
        shutil.chown(self.root, user)
        diag = [sys.executable, "-m", "diag", "run", "--port", "0", "--run-root", str(self.root)]
        words = ["choom", "-n", "0", "--", *prefix, *diag, "--", *job]
        with open(self.terminal, "wb") as file:
            self.process = subprocess.Popen(
                words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def text(self) -> str:
        return self.terminal.read_text("utf-8", "replace")

    def page(self, path: str) -> dict[str, Any]:
        """What diag says there, empty while it does not listen. Asked in this process: each start of Python
        costs the machine half a second."""
        found = re.search(r"page (http://[\d.:]+)", self.text())
        if found is None:
            return {}
        try:
            with urllib.request.urlopen(f"{found[1]}/{path}", timeout=30) as answer:
                said: dict[str, Any] = json.load(answer)
                return said
        except (OSError, ValueError):  # it does not listen yet, or not any more
            return {}

    def job(self) -> dict[str, Any]:
        said: dict[str, Any] = self.page("findings").get("job", {})
        return said

    def ranks(self) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = self.page("ranks").get("ranks", [])
        return said

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

    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> str:
        """As a person ends it. Returns what went wrong with that."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return "; diag run did not end within 60 s of SIGTERM"
        return ""

    def packed(self) -> str:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
            for path in sorted(self.root.glob("*/*")):
                if path.is_file() and path.name.startswith(("journal-", "run.json", "findings")):
                    tar.add(path, path.relative_to(self.root), recursive=False)
        return base64.b64encode(buffer.getvalue()).decode()
