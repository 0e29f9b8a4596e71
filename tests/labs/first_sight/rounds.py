"""The rounds: which jobs there are, what is true of them, and whether they are still what was hashed."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "BUILD",
    "PYTHON",
    "Job",
    "Truth",
    "changed",
    "default_results",
    "jobs_of",
    "round_folder",
    "truth_of",
]

PYTHON = "{python}"  # stands for the interpreter in commands and shell scripts
BUILD = Path(__file__).parents[3] / "build" / "first_sight"
_HASHES = "SHA256"


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    folder: Path
    command: tuple[str, ...]
    seconds: float
    needs: tuple[str, ...]  # packages beside torch

    def words(self, python: str) -> list[str]:
        return [word.replace(PYTHON, python) for word in self.command]

    def copy_to(self, folder: Path, python: str) -> None:
        """The job as it is run: it may write into its folder, and does not see its truth."""
        left_out = shutil.ignore_patterns("truth.json", "job.json", "__pycache__")
        shutil.copytree(self.folder, folder, ignore=left_out)
        for script in folder.rglob("*.sh"):
            script.write_text(script.read_text().replace(PYTHON, shlex.quote(python)))


@dataclass(frozen=True, slots=True)
class Truth:
    honest: bool
    what: str
    ranks: frozenset[int] = frozenset()
    remedy: str = ""
    holds_up_only: bool = False


def round_folder(number: int) -> Path:
    return Path(__file__).parent / f"round_{number}"


def default_results(number: int) -> Path:
    return BUILD / f"round_{number}.jsonl"


def jobs_of(folder: Path) -> list[Job]:
    """In the order in which they are run: mixed, and always the same."""
    jobs = []
    for path in folder.glob("*/job.json"):
        told = json.loads(path.read_text())
        job = Job(
            path.parent.name,
            path.parent,
            tuple(told["command"]),
            told["seconds"],
            tuple(told.get("needs", ())),
        )
        jobs.append(job)
    return sorted(jobs, key=lambda job: hashlib.sha256(job.name.encode()).digest())


def truth_of(job: Job) -> Truth:
    told = json.loads((job.folder / "truth.json").read_text())
    return Truth(**{**told, "ranks": frozenset(told.get("ranks", ()))})


def changed(folder: Path) -> list[str]:
    """Files that are not as they were hashed, are gone, or have come since."""
    lines = (folder / _HASHES).read_text().splitlines()
    hashed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    found = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and path != folder / _HASHES and "__pycache__" not in path.parts
    }
    return sorted(
        name
        for name in hashed.keys() | found.keys()
        if name not in found or hashlib.sha256(found[name].read_bytes()).hexdigest() != hashed.get(name)
    )
