"""Collects the rows of the fault matrix over all workers and prints them as one table."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def pytest_configure(config: Any) -> None:
    if "DIAG_MATRIX_FILE" not in os.environ:
        handle, path = tempfile.mkstemp(prefix="diag-matrix-")
        os.close(handle)
        os.environ["DIAG_MATRIX_FILE"] = path


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    if hasattr(config, "workerinput"):
        return
    path = Path(os.environ.get("DIAG_MATRIX_FILE", ""))
    if not path.is_file():
        return
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    if not rows:
        return
    write = terminalreporter.write_line
    terminalreporter.section("fault matrix")
    write(f"{'case':<28} {'expected':<14} {'found':<26} {'ranks':<8} {'delay s':>8}  ok")
    for row in rows:
        delay = "" if row.get("delay") is None else f"{row['delay']:.1f}"
        ranks = ",".join(map(str, row.get("ranks") or []))
        write(
            f"{row['case']:<28} {row['expected']:<14} {row['found'][:60]:<26} {ranks:<8} {delay:>8}  "
            f"{'yes' if row['ok'] else 'NO'}"
        )
    write(f"{sum(row['ok'] for row in rows)} of {len(rows)} as expected")
