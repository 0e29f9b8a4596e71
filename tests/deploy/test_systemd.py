"""deploy/systemd: systemd reads the units without a word, and what they start are commands that diag has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from diag.cli.main import make_parser

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_units_as_they_are(tmp_path: Path) -> None:
    """With the program that they start where they look for it: %h is the home of who verifies."""
    program = tmp_path / ".local" / "bin" / "diag"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS.glob("*.*"):
        if unit.suffix in (".service", ".timer"):
            (tmp_path / unit.name).write_text(unit.read_text().replace("%h", str(tmp_path)))

    units = [str(path) for path in sorted(tmp_path.glob("diag-*"))]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(units) == 3
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.name)
def test_what_a_unit_starts_is_a_command_of_diag(unit: Path) -> None:
    (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    program, *words = line.removeprefix("ExecStart=").split()

    assert program.endswith("/bin/diag")
    assert make_parser().parse_args(words).verb == words[0]
