"""`python -m tests.labs.log_lab.swift [NAME ...]`: run cases and write their logs and cases.yaml.

Each version is an environment DIR/NAME below --environments; `base` is the one that runs this. --list says
what there is.
"""

from __future__ import annotations

import argparse
import fcntl
import fnmatch
import json
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from . import assets
from .case import Case, Version
from .record import REPOSITORY, record, write_log
from .table import VERSIONS, cases

_DEFAULT = REPOSITORY / "tests" / "captures" / "logs" / "swift"


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.labs.log_lab.swift", description=__doc__)
    p.add_argument("name", nargs="*", help="cases to run, as shell patterns (default: all of the version)")
    p.add_argument("--version", default="base", choices=[v.name for v in VERSIONS])
    p.add_argument("--environments", type=Path, default=Path("/opt/log-lab"), metavar="DIR")
    p.add_argument("--scratch", type=Path, default=Path("/tmp/log-lab"), metavar="DIR")
    p.add_argument("--out", type=Path, default=_DEFAULT, metavar="DIR")
    p.add_argument("--suffix", default="", help="of the logs' names, to hold versions apart")
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--list", action="store_true")
    p.add_argument(
        "--index",
        action="store_true",
        help="write what the logs that are there should lead to anew; run nothing",
    )
    options = p.parse_args()
    version = next(v for v in VERSIONS if v.name == options.version)
    chosen = [
        c for c in cases(version) if not options.name or any(fnmatch.fnmatch(c.name, n) for n in options.name)
    ]
    if options.list:
        for case in chosen:
            print(f"{case.name:36} {case.expect:24} {case.why}")
        return 0
    own = version.name.startswith("base")
    python = Path(sys.executable) if own else options.environments / version.name / "bin" / "python"
    if options.index:
        _index(options.out / "cases.yaml", chosen, version, options.suffix)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    assets.make(options.scratch / "assets")
    with ThreadPoolExecutor(options.workers) as pool:
        running = {pool.submit(record, case, python, options.scratch, version.name): case for case in chosen}
        for done in as_completed(running):
            case, (text, line, code) = running[done], done.result()
            if code is None and case.seconds > 200:  # a short limit means: it never ends by itself
                print(f"{case.name:36} had to be ended after {case.seconds} s: not kept", flush=True)
                continue
            _keep(
                options.out / "cases.yaml",
                _entry(case, version, write_log(options.out, case.name + options.suffix, text), line),
            )
            print(f"{case.name:36} exit {code}  {len(text)} characters  {_last_error(text)}", flush=True)
    return 0


def _entry(case: Case, version: Version, log: str, line: str) -> dict[str, Any]:
    ranks = {"ranks": list(case.ranks)} if case.ranks else {}
    return {
        "log": log,
        "made_with": version.made_with(case),
        "command": line,
        "expect": case.expect,
        **ranks,
        "why": case.why,
    }


def _index(path: Path, chosen: list[Case], version: Version, suffix: str) -> None:
    by_log = {f"{case.name}{suffix}.log": case for case in chosen}
    for block in _blocks(path):
        fields = {
            name: json.loads(value) for name, value in re.findall(r"^[- ] (\w+): (.*)$", block, re.MULTILINE)
        }
        case = by_log.get(fields["log"].removesuffix(".gz"))
        if case is not None:
            _keep(path, _entry(case, version, fields["log"], fields["command"]))


def _blocks(path: Path) -> list[str]:
    return re.split(r"^(?=- log: )", path.read_text(), flags=re.MULTILINE)[1:] if path.exists() else []


def _keep(path: Path, entry: dict[str, Any]) -> None:
    """Put an entry in its place in cases.yaml. Each value is JSON, which is YAML as well."""
    with Path(tempfile.gettempdir(), "log-lab.lock").open("w") as lock:  # several drivers may run at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        _keep_locked(path, entry)


def _keep_locked(path: Path, entry: dict[str, Any]) -> None:
    entries = {block.splitlines()[0]: block for block in _blocks(path)}
    fields = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items()]
    entries[f"- {fields[0]}"] = "- " + "\n  ".join(fields) + "\n"
    path.write_text(
        "# Written by `python -m tests.labs.log_lab.swift`.\n"
        + "".join(entries[key] for key in sorted(entries))
    )


def _last_error(text: str) -> str:
    errors = re.findall(r"^(?:\[rank\d+\]: ?)?([\w.]*(?:Error|Exception)\b.{0,90})", text, re.MULTILINE)
    return str(errors[-1] if errors else "-")


if __name__ == "__main__":
    sys.exit(main())
