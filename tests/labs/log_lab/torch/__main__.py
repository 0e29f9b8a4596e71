"""`python -m tests.labs.log_lab.torch [NAME...]`: makes the logs anew and writes what is expected of them into
cases.yaml.

Needs Linux and bash; root for the cases with mounts of their own. The interpreter of the jobs is given by
--python.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.labs.log_lab.torch.case import Case
from tests.labs.log_lab.torch.cases_build import BUILD
from tests.labs.log_lab.torch.cases_data import DATA
from tests.labs.log_lab.torch.cases_healthy import HEALTHY
from tests.labs.log_lab.torch.cases_launch import LAUNCH
from tests.labs.log_lab.torch.cases_library import LIBRARY
from tests.labs.log_lab.torch.cases_ranks import RANKS

__all__ = ["main"]

LAB = Path(__file__).parent
TIMED_OUT = 124  # as timeout(1) says it
OUT = Path("tests/captures/logs/torch")
CASES = (*LAUNCH, *RANKS, *DATA, *BUILD, *LIBRARY, *HEALTHY)

_FACTS = """
import importlib.util, json, sys, sysconfig
import torch
from importlib.metadata import version, PackageNotFoundError
found = {}
for name in ("torch", "deepspeed", "accelerate", "transformers", "peft", "datasets", "tokenizers", "safetensors", "numpy"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps({"versions": found, "cuda": torch.version.cuda, "prefix": sys.prefix, "base": sys.base_prefix,
                  "python": f"{sys.version_info[0]}.{sys.version_info[1]}"}))
"""


class Interpreter:
    """The Python that runs the jobs: what is installed there, and how its paths are named in the logs."""

    def __init__(self, python: Path) -> None:
        self.python = python.absolute()
        told = subprocess.run(
            [self.python, "-c", _FACTS], env=self.environment(), capture_output=True, text=True, check=True
        )
        facts = json.loads(told.stdout.splitlines()[-1])
        self.versions: dict[str, str] = facts["versions"]
        self.cuda: str | None = facts["cuda"]
        self.version: str = facts["python"]
        self.paths = [(str(facts["prefix"]), "/opt/venv"), (str(facts["base"]), "/usr/local")]

    def environment(self) -> dict[str, str]:
        kept = ("HOME", "LANG", "TERM", "TMPDIR")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        env["PATH"] = f"{self.python.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return env

    def torch(self) -> tuple[int, int]:
        major, minor = self.versions["torch"].split(".")[:2]
        return int(major), int(minor)

    def runs(self, case: Case) -> bool:
        fits = case.since <= self.torch() <= case.until and all(name in self.versions for name in case.needs)
        return fits and case.cuda_build in (None, self.cuda is not None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def record(case: Case, interpreter: Interpreter) -> tuple[str, str, int]:
    """Run the case. Its log, the command as a user would type it, and the exit code."""
    names = {"port": str(free_port()), "python": str(interpreter.python), "lab": str(LAB)}

    def filled(text: str) -> str:
        return re.sub(r"\{(port|python|lab)\}", lambda m: names[m[1]], text)

    folder = Path(tempfile.mkdtemp(prefix="log-lab-"))
    try:
        if case.script:
            shutil.copy(LAB / "scripts" / f"{case.script}.py", folder / "train.py")
        log = folder.with_suffix(".log")
        body = f"cd {folder}\n{{ {filled(case.setup) or ':'}\n}} >/dev/null 2>&1 </dev/null\n"
        command = filled(case.command)
        if case.tty:
            body += f"script -qefc {json.dumps(command)} /dev/null >{log} 2>&1 </dev/null\n"
        else:
            body += f"exec >{log} 2>&1 </dev/null\n{command}\n"
        argv = ["unshare", "-m", "bash", "-c", body] if case.mounts else ["bash", "-c", body]
        process = subprocess.Popen(argv, env=interpreter.environment(), start_new_session=True)
        try:
            code = process.wait(case.timeout)
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        finally:
            _end(process, folder)
        text = log.read_bytes().decode("utf-8", "backslashreplace")
        log.unlink()
        typed = command.replace(names["python"], "python")
        return _anonymous(text, folder, interpreter), _anonymous(typed, folder, interpreter), code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End what the case left running: its process group, and ranks in sessions of their own, which stand in
    its folder."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    for cwd in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if cwd.readlink() == folder:
                os.kill(int(cwd.parent.name), signal.SIGKILL)
        except OSError:  # it ended by itself
            pass


def _anonymous(text: str, folder: Path, interpreter: Interpreter) -> str:
    for path, name in [
        (str(folder), "/workspace/job"),
        (folder.name, "job"),
        *interpreter.paths,
        (str(LAB), "/workspace/lab"),
    ]:
        text = text.replace(path, name)
    text = text.replace(str(Path.cwd()), "/workspace")
    host = socket.gethostname()
    return (
        text if host == "localhost" else re.sub(rf"(?<![\w./-]){re.escape(host)}(?![\w/-])", "node-1", text)
    )


def entry(case: Case, log: str, command: str, interpreter: Interpreter) -> str:
    """One line of cases.yaml. JSON's strings and lists are YAML's too."""
    made = [case.launcher, f"torch {interpreter.versions['torch']}"]
    made += [f"{name} {interpreter.versions[name]}" for name in case.needs if name != "torch"]
    made += [f"{case.nproc} ranks" if case.nproc > 1 else "1 process", f"python {interpreter.version}"]
    pairs = [
        f"log: {log}",
        f"made_with: {json.dumps(', '.join(made))}",
        f"command: {json.dumps(command)}",
        f"expect: {case.expect}",
    ]
    if case.ranks:
        pairs.append(f"ranks: {list(case.ranks)}")
    if case.also:
        pairs.append(f"also: [{', '.join(case.also)}]")
    return "- {" + ", ".join([*pairs, f"why: {json.dumps(case.why)}"]) + "}"


def write_entry(path: Path, line: str) -> None:
    """Put one entry in the place of an older one of the same log; sorted, so that a new version changes few
    lines."""
    name = line.partition(",")[0]
    path.touch()
    with open(path, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # drivers of several versions side by side
        lines = [old for old in file.read().splitlines() if not old.startswith(name + ",")]
        file.seek(0)
        file.write("\n".join(sorted([*lines, line])) + "\n")
        file.truncate()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.log_lab.torch", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="names of cases, or how they begin (default all)"
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        help="the interpreter of the jobs (default this one)",
    )
    parser.add_argument("--out", type=Path, default=OUT, help=f"where logs and cases.yaml go (default {OUT})")
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    args = parser.parse_args(argv)
    chosen = [case for case in CASES if not args.names or case.name.startswith(tuple(args.names))]
    if args.list:
        for case in chosen:
            print(f"{case.name:32} {case.expect:24} {case.why}")
        return 0
    interpreter = Interpreter(args.python)
    args.out.mkdir(parents=True, exist_ok=True)
    for case in chosen:
        if not interpreter.runs(case):
            print(f"{case.name}: not with this interpreter")
            continue
        text, command, code = record(case, interpreter)
        if code == TIMED_OUT and not case.runs_on:
            print(f"{case.name}: not ended after {case.timeout:.0f} s, nothing kept", flush=True)
            continue
        log = f"{case.name}_{interpreter.versions['torch'].partition('+')[0]}.log"
        (args.out / log).write_text(text, encoding="utf-8", newline="")
        write_entry(args.out / "cases.yaml", entry(case, log, command, interpreter))
        print(f"{log}: exit {code}, {len(text.splitlines())} lines", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
