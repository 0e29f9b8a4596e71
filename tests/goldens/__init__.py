"""What `diag replay` makes of every capture, kept as text (`kept/`): no change of code changes a verdict
unseen. `make goldens` writes it anew."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import diag.engine.replay
from diag.cli.main import main

__all__ = ["KEPT", "Golden", "goldens", "kept", "replayed", "sections"]

CAPTURES = Path(__file__).parents[1] / "captures"
KEPT = Path(__file__).parent / "kept"

_AT = 1_767_225_600  # 2026-01-01 00:00:00 UTC: what a file's time says where its text has none
_WIDTH = 110
_MARK = "=== "
_EVIDENCE = (".log", ".txt", ".gz")

# Folders of which each file is evidence of its own. The folder as a whole would be a job of strangers.
_ONE_BY_ONE = ("logs", "plain-loops", "printing", "memory/v2", "sources/rdma", "steps")
_FOLDERS = (
    "gpu-drills", "gpu-loops", "h200-live", "h200-net", "kernel-waits", "loose", "memory", "over", "ray", "steps",
)  # fmt: skip
# Not replayed: what one reader is given in its own tests (`diag replay` refuses it), and answers of a server.
_NO_EVIDENCE = ("estimate", "fr", "gpu", "metrics", "sources", "stacks", "trees", "logs/nccl/lines")
# Of each case of NCCL the folder is replayed for every version, its ranks' logs one by one for these alone (the
# oldest and the newest): 800 more print nearly the same, and would double what is kept.
_VERSIONS_RANK_BY_RANK = ("2.18.3", "2.31.2")


@dataclass(frozen=True)
class Golden:
    """Something to replay: its name, the file in `kept/` that has it, and its paths below the captures."""

    name: str
    group: str
    paths: tuple[str, ...]
    bundled: bool = False  # as the archive that `diag dump` makes


def goldens() -> list[Golden]:
    found = {one.name: one for one in (*_folders(), *_files(), *_together())}
    return [found[name] for name in sorted(found)]


def _folders() -> Iterator[Golden]:
    for folder in _FOLDERS:
        for path in sorted((CAPTURES / folder).iterdir()):
            if path.is_dir() and f"{folder}/{path.name}" not in _ONE_BY_ONE:
                yield _golden(path, folder)
    for path in sorted((CAPTURES / "nccl").glob("*/*")):
        if path.is_dir():
            yield _golden(path, f"nccl-{path.parent.name}")


def _files() -> Iterator[Golden]:
    for folder in _ONE_BY_ONE:
        for path in sorted((CAPTURES / folder).rglob("*")):
            below = str(path.relative_to(CAPTURES).parent)
            if path.is_file() and path.suffix in _EVIDENCE and below not in _NO_EVIDENCE:
                if path.name.startswith("journal-0") or path.name.startswith("kmsg-"):
                    continue  # the folder is replayed; lines of the kernel, which a parser is given
                if path.suffix == ".txt" and folder != "logs":
                    continue
                yield _golden(path, below.replace("/", "-"))
    for version in _VERSIONS_RANK_BY_RANK:
        for path in sorted((CAPTURES / "nccl" / version).rglob("*.log")):
            if path.stat().st_size:
                yield _golden(path, f"nccl-{version}-ranks")


def _together() -> Iterator[Golden]:
    """Several paths as one job, and archives."""
    for path in sorted((CAPTURES / "h200-net").glob("*-node0")):
        pair = tuple(f"h200-net/{path.name[:-1]}{node}" for node in "01")
        yield Golden(f"{pair[0]} and node1", "together", pair)
    for path in sorted((CAPTURES / "loose").iterdir()):
        logs = tuple(str(log.relative_to(CAPTURES)) for log in sorted(path.glob("rank*.log")))
        if len(logs) > 1:
            yield Golden(f"loose/{path.name}/rank*.log", "together", logs)
    for name in ("h200-live/data-hang", "gpu-drills/host-oom"):
        yield Golden(f"{name} as a bundle", "together", (name,), bundled=True)


def _golden(path: Path, group: str) -> Golden:
    name = str(path.relative_to(CAPTURES))
    return Golden(name, group, (name,))


def replayed(golden: Golden, place: Path) -> str:
    """What it says of a capture: text, changes and report. `place`: an empty folder, of which every run
    makes the same, as a checkout has times of its own."""
    paths = [_copied(path, place) for path in golden.paths]
    with _settled(place), _replayed_once():
        if golden.bundled:
            paths = [_bundle(path) for path in paths]
        text = _typed("replay", *paths)
        changes = _typed("replay", "--changes", *paths)
        document = _typed("replay", "--json", *paths)
    lines = [_change(json.loads(line)) for line in changes.splitlines() if line.startswith("{")]
    parts = [text.rstrip(), *(["", *lines] if lines else [])]
    if document.startswith("{"):
        parts += ["", _report(json.loads(document[: document.rindex("}") + 1]))]
    return "\n".join(line.rstrip() for part in parts for line in part.split("\n")) + "\n"


def _copied(name: str, place: Path) -> str:
    source, target = CAPTURES / name, place / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    for path in (target, *target.rglob("*")):
        os.utime(path, (_AT, _AT))
    return name


def _bundle(name: str) -> str:
    with tarfile.open(f"{name}.tar.gz", "w:gz") as tar:
        tar.add(name)
    return f"{name}.tar.gz"


@contextlib.contextmanager
def _settled(place: Path) -> Iterator[None]:
    """The folder, the width and the time zone in which people would see the same."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DIAG_")}
    environment |= {"TZ": "UTC", "COLUMNS": str(_WIDTH), "NO_COLOR": "1", "DIAG_LANG": "en"}
    before = Path.cwd()
    with mock.patch.dict(os.environ, environment, clear=True):
        os.chdir(place)
        time.tzset()
        try:
            yield
        finally:
            os.chdir(before)
    time.tzset()


@contextlib.contextmanager
def _replayed_once() -> Iterator[None]:
    """Three faces of one replay."""
    replay: Callable[..., Any] = diag.engine.replay.replay
    done: list[Any] = []

    def once(*given: Any, **named: Any) -> Any:
        if not done:
            done.append(replay(*given, **named))
        return done[0]

    with mock.patch.object(diag.engine.replay, "replay", once):
        yield


def _typed(*words: str) -> str:
    """A command of diag: its stdout, what it notes, and its exit code where that is of interest."""
    out, erred = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(erred):
        code = main([*words])
    return f"{out.getvalue()}{erred.getvalue()}exit code {code}\n"


def _change(change: dict[str, Any]) -> str:
    finding = change["finding"]
    named = " ".join(str(part) for part in (finding["id"], finding["class"], finding["cause"]) if part)
    extra = {name: value for name, value in change.items() if name not in ("change", "at", "finding")}
    return f"{change['at']:.3f} {change['change']} {finding['severity']} {named}: {finding['summary']} {json.dumps(extra)}"


def _report(document: dict[str, Any]) -> str:
    """As JSON, in which a line holds what fits it: differences are read by people."""
    return _json(document, "")


def _json(value: Any, indent: str) -> str:
    flat = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(flat) <= _WIDTH or not isinstance(value, (dict, list)):
        return flat
    deeper = indent + " "
    if isinstance(value, dict):
        inner = [f"{json.dumps(name)}: {_json(value[name], deeper)}" for name in sorted(value)]
        return "{\n" + ",\n".join(deeper + line for line in inner) + "\n" + indent + "}"
    return "[\n" + ",\n".join(deeper + _json(one, deeper) for one in value) + "\n" + indent + "]"


def sections(parts: dict[str, str]) -> str:
    """The text of a file of `kept/`."""
    return "\n".join(f"{_MARK}{name}\n{text}" for name, text in sorted(parts.items()))


def kept(group: str) -> dict[str, str]:
    """What a file of `kept/` says of each of its captures."""
    path = KEPT / f"{group}.txt"
    parts: dict[str, str] = {}
    if not path.exists():
        return parts
    name = ""
    for line in path.read_text().split("\n"):
        if line.startswith(_MARK):
            name = line.removeprefix(_MARK)
            parts[name] = ""
        else:
            parts[name] += line + "\n"
    return {name: text.rstrip("\n") + "\n" for name, text in parts.items()}
