"""What must be true of a command that is shown: its words are read by whoever would get them. One that nobody
knows fails."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess

from diag.cli.main import VERBS, make_parser
from diag_job import faults
from diag_job.__main__ import parser as job_parser
from tests.guide.pages import ROOT, simple_commands

# What is not run here, and why. All else that is shown is run (test_commands.py), or is part of the tutorial
# (test_tutorial.py).
NOT_RUN = {
    "diag run ": "runs CMD, which needs a cluster, GPUs or another program; the tutorial's is run",
    "diag runs rm": "removes the reader's own runs; tests/past has some",
    "swift": "trains; of a script in which diag's own variable is",
    "diag watch": "needs a job; the one of docs/howto/attach.md is run beside the tutorial's",
    "diag dump": "needs a job; the tutorial's is run",
    "diag flame": "needs a job; the tutorial's is run",
    "diag mcp --http": "serves until a signal; tests/agents has one",
    "diag notify": "sends to the reader's own services; tests/notify has some",
    "mkdir": "makes the reader's own file of addresses",
    "touch": "makes the reader's own file of addresses",
    "chmod": "keeps the reader's own file of addresses from others",
    "$EDITOR": "is the reader's",
    "diag doctor --wait": "waits for the other nodes; tests/preflight has two",
    "git clone": "fetches; the address is the reader's",
    "pip install": "changes the environment; tests/test_packaging.py installs what is built",
    "source": "is of the reader's shell; `make` makes that file",
    "export": "is of the reader's shell",
    "cd": "is of the reader's shell",
    "diff": "compares the reader's files",
    "echo": "lets the tutorial's fault go, which is run",
    "cat /proc": "a setting of the machine, which not every kernel has",
    "docker": "needs a daemon, images and GPUs; files and diag's own words in it are read",
    "kubectl": "needs a cluster; files and diag's own words in it are read",
    "sbatch": "needs Slurm; files are looked at, tests/cluster/slurm runs them",
    "srun": "needs Slurm; diag's own words in it are read",
}
RUN = ("diag", "make", "bash", "zcat", "python")


class Unknown(Exception):
    """A command that is shown and that nothing here can vouch for."""


def check(line: str) -> list[str]:
    """Check each command of a line; the reasons why it is not run, none if it is to be run. Unknown says what
    is wrong."""
    reasons = []
    for variables, words in simple_commands(line):
        if "FAULT" in variables:
            _check_fault(variables["FAULT"], 2)
        if not words:
            raise Unknown(f"no command in {line!r}")
        reasons += [why for why in [_check_one(words)] if why]
        _check_files(words)
    return reasons


def _check_one(words: list[str]) -> str:
    text = " ".join(words)
    if words[0] == "diag":
        check_diag(words)
    elif words[0] in ("docker", "kubectl", "srun"):
        for at, word in enumerate(words):
            if word == "diag" and words[at + 1 : at + 2] and words[at + 1] in VERBS:
                check_diag(words[at:])
                break
    for key, why in NOT_RUN.items():
        if text.startswith(key) or (
            key == "diag doctor --wait" and text.startswith("diag doctor") and "--wait" in words
        ):
            return why
    if words[0] not in RUN:
        raise Unknown(
            f"{words[0]!r} is a new command: run it in test_commands.py, or say in NOT_RUN why not: {text}"
        )
    return ""


def check_diag(words: list[str]) -> None:
    """The words are accepted by diag's own parser, and what stands behind `--` by that of the bundled job if
    it is that."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            make_parser(words[1] if words[1:2] and words[1] in VERBS else None).parse_args(
                _readable(words[1:])
            )
    except SystemExit as end:
        raise Unknown(f"`{' '.join(words)}`: {said.getvalue().strip().splitlines()[-1]}") from end
    behind = words[words.index("--") + 1 :] if "--" in words else []
    if behind[:3] == ["python", "-m", "diag_job"]:
        try:
            with contextlib.redirect_stderr(said):
                options = job_parser().parse_args(behind[3:])
        except SystemExit as end:
            raise Unknown(f"`{' '.join(behind)}`: {said.getvalue().strip().splitlines()[-1]}") from end
        if options.fault:
            _check_fault(options.fault, options.nproc)


def _readable(words: list[str]) -> list[str]:
    """Names that stand for a number as a number."""
    return [
        "4711" if word in ("PID", "LAUNCHER", "DRIVER") else "3" if word == "RANK" else word for word in words
    ]


def _check_fault(text: str, ranks: int) -> None:
    try:
        faults.check(faults.parse(text), ranks)
    except faults.FaultError as error:
        raise Unknown(str(error)) from error


def _check_files(words: list[str]) -> None:
    """Files of this repository are there, and shell scripts among them can be read by bash."""
    for word in words:
        if re.match(r"(deploy|rules|docs|dashboards|tests)/", word):
            path = ROOT / word
            if not path.exists():
                raise Unknown(f"{word} is not in the repository")
            if path.suffix in (".sh", ".sbatch"):
                subprocess.run(["bash", "-n", str(path)], check=True)
