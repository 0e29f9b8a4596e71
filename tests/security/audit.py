"""Known faults of the packages that diag needs, as installed here, and of no others: `python -m
tests.security.audit`.

Asks the advisory databases by pip-audit. Ends with 0: none is known; 1: some are, and told; 3: not checked,
no database could be asked. What the training job needs (torch and such) is the job's, and what tests need is
never installed with diag.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["NOT_CHECKED", "audit", "closure"]

NOT_CHECKED = 3
_DATABASES = ("pypi", "osv")
_SECONDS = 300
Answer = tuple[int, str, str]  # exit code, stdout, stderr


def closure(roots: Sequence[str]) -> dict[str, str]:
    """Names and installed versions of what these requirements need, without extras that nobody asked for.

    >>> "uvicorn" in closure(["uvicorn>=0.1"]) and "h11" in closure(["uvicorn"])
    True
    """
    found: dict[str, str] = {}
    left = [Requirement(each) for each in roots]
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        found[name] = importlib.metadata.version(name)
        below = importlib.metadata.requires(name) or ()
        for each in map(Requirement, below):
            if each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)
            ):
                each.marker = None
                left.append(each)
    return found


def _ask(packages: Mapping[str, str], database: str) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("".join(f"{name}=={version}\n" for name, version in sorted(packages.items())))
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(listed), "--no-deps", "--disable-pip",
                   "--timeout", "20", "--format", "json", "--progress-spinner", "off",
                   "--vulnerability-service", database]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    return done.returncode, done.stdout, done.stderr


def audit(packages: Mapping[str, str], ask: Callable[[Mapping[str, str], str], Answer] = _ask) -> int:
    """Print what the first database that answers for every package says. Returns the exit code."""
    for database in _DATABASES:
        trouble = f"no answer in {_SECONDS} s"
        try:
            _, said, trouble = ask(packages, database)
            rows = json.loads(said)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
            print(f"not checked: {database} could not be asked: {_last(trouble)}", file=sys.stderr)
            continue
        told = {canonicalize_name(row["name"]): row for row in rows}
        unknown = sorted(name for name in packages if name not in told or "vulns" not in told[name])
        if unknown:  # pip-audit skips what the database has not, and ends with 0
            print(f"not checked: {database} does not know {len(unknown)} of {len(packages)} packages: {', '.join(unknown)}",
                  file=sys.stderr)  # fmt: skip
            continue
        faults = [(row["name"], row["version"], fault) for row in rows for fault in row["vulns"]]
        for name, version, fault in faults:
            print(
                f"{name} {version}: {fault['id']}, mended in {', '.join(fault.get('fix_versions') or ()) or 'no version'}"
            )
        print(f"{database}: {len(packages)} packages, {len(faults)} known faults")
        return 1 if faults else 0
    print(
        f"NOT CHECKED: {len(packages)} packages of diag; no database of advisories could be asked from here",
        file=sys.stderr,
    )
    return NOT_CHECKED


def _last(text: str) -> str:
    return ([line for line in text.splitlines() if line.strip()] or ["it said nothing"])[-1].strip()[:300]


def requirements() -> list[str]:
    """Of diag itself, as it is installed."""
    return [each for each in importlib.metadata.requires("diag") or () if "extra ==" not in each]


if __name__ == "__main__":
    sys.exit(audit(closure(requirements())))
