"""Tries diag with the lowest versions of its dependencies: `python -m tests.security.lowest [PYTHON]`, some
30 seconds.

An environment of its own in build/, in which `diag run` watches a job while its page and metrics are asked
for, and `diag dump` and `diag top --once` print what they print. Packages come from the index that pip has
been told of.
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

_ROOT = Path(__file__).parents[2]
_PATHS = (
    "/",
    "/findings",
    "/ranks",
    "/state",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/healthz",
    "/timeline",
    "/explain/hang",
)


def made(python: str) -> Path:
    """Its interpreter."""
    folder = _ROOT / "build" / f"lowest-{Path(python).name}"
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(_ROOT / "requirements/lowest.txt")], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(_ROOT)], check=True)
    subprocess.run([str(folder / "bin/python"), "-m", "pip", "check"], check=True)
    return folder / "bin/python"


def tried(python: Path) -> list[str]:
    """What did not work."""
    troubles = []
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "DIAG_RUN_ROOT": folder, "DIAG_PORT": "0", "NO_COLOR": "1"}
        diag = [str(python), "-m", "diag"]
        job = subprocess.Popen(
            [*diag, "run", "--", str(python), "-c", "input()"], env=env, stdin=subprocess.PIPE
        )
        url, until = None, time.monotonic() + 60
        while url is None and time.monotonic() < until and job.poll() is None:
            time.sleep(0.1)
            for path in Path(folder).glob("*/run.json"):
                with contextlib.suppress(OSError, ValueError):
                    url = json.loads(path.read_text())["url"]
        for path in _PATHS:
            try:
                with urllib.request.urlopen(f"{url}{path}", timeout=20) as answer:
                    if not answer.read():
                        troubles.append(f"{path}: empty")
            except (OSError, ValueError) as error:
                troubles.append(f"{path}: {error}")
        for words in (
            ["dump"],
            ["top", "--once"],
            ["replay", next(iter(map(str, Path(folder).glob("*-*"))), folder)],
        ):
            done = subprocess.run(
                [*diag, *words], env=env, capture_output=True, text=True, check=False, timeout=60
            )
            if done.returncode not in (0, 10):
                troubles.append(f"diag {words[0]}: {done.returncode}: {done.stderr[-300:]}")
        job.communicate(b"\n", timeout=60)
        if job.returncode:
            troubles.append(f"diag run: {job.returncode}")
    return troubles


if __name__ == "__main__":
    wrong = tried(made(sys.argv[1] if len(sys.argv) > 1 else sys.executable))
    print("\n".join(wrong) or "the lowest versions work")
    sys.exit(1 if wrong else 0)
