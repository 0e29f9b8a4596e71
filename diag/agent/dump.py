"""The answer to `diag dump`: a `diag.dump/1` document, and the bundle file that `diag replay` reads back."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from diag.agent.node_hub import NodeHub
from diag.agent.probes import probe_row
from diag.engine.engine import Engine
from diag.engine.journal import segments, whole
from diag.model import found
from diag.outputs.report import report
from diag.outputs.terminal.process_text import process_texts
from diag.outputs.terminal.text import classes_text, dump_text
from diag.outputs.view.classes import stack_classes, thread_classes
from diag.outputs.view.network_view import network_json
from diag.outputs.view.npus_view import npus_json
from diag.outputs.view.ray_view import ray_json
from diag.outputs.view.steps_view import arrivals_json, steps_json
from diag.outputs.view.view import ranks_json

SCHEMA = "diag.dump/1"
_BUNDLE_SCHEMA = "diag.bundle/1"
_MOST_NATIVE = 8  # ranks; each is stopped for up to two seconds
_MOST_NATIVE_FRAMES = 300
_MOST_INDENTED = 512  # ranks: of 8,192 laying it out takes 10 s, writing it 1 s


class Timer:
    """What the hub's own part of a dump cost, step by step."""

    def __init__(self) -> None:
        self.began = self._last = time.monotonic()
        self.steps: list[dict[str, Any]] = []

    def took(self, step: str) -> None:
        now = time.monotonic()
        self.steps.append({"rank": None, **probe_row(f"hub_{step}", round(now - self._last, 6))})
        self._last = now


def dump_document(hub: NodeHub, answers: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Everything a person needs at once. Every rank is either in `classes` with a stack or in `missing` with
    a reason.

    The hub's lock is held by the caller.
    """
    engine = hub.engine
    missing: dict[str, list[str]] = {}
    for rank in sorted(engine.job.ranks.values(), key=lambda rank: rank.rank):
        answer = answers.get(rank.rank)
        reasons = list(answer["missing"]) if answer else []
        if not rank.alive:
            reasons = ["the process has ended"]
        elif answer is None:
            reasons = ["its sidecar did not answer in time"]
        if reasons:
            missing[str(rank.rank)] = reasons
    for number in range(min(engine.job.world_size, 16384)):
        if number not in engine.job.ranks:
            missing[str(number)] = ["not on this node, or not started"]
    return {
        "schema": SCHEMA,
        "run_id": hub.run_id,
        "diag_version": hub.version,
        "host": hub.host,
        "at": time.time(),
        "seconds": 0.0,
        **described(engine),
        "missing": missing,
        "network": network_json(engine),
        "npus": npus_json(engine),
        "ray": ray_json(engine),
        "versions": {
            str(rank): answer["versions"]
            for rank, answer in sorted(answers.items())
            if answer.get("versions")
        },
        "processes": [
            {"rank": rank, **row}
            for rank, answer in sorted(answers.items())
            for row in answer.get("processes", ())
        ],
        "probes": [
            {"rank": rank, **row}
            for rank, answer in sorted(answers.items())
            for row in answer.get("probes", ())
        ],
    }


def culprits(engine: Engine) -> frozenset[int]:
    """Ranks that are said to hold the job up."""
    return frozenset(
        rank for finding in engine.active() if finding.id in ("hang", "held-up") for rank in finding.ranks
    )


def described(engine: Engine) -> dict[str, Any]:
    """What an engine's state comes to: of one node, or of all nodes put together."""
    classes = stack_classes(engine)
    document = report(engine, classes)
    classes += thread_classes(engine)
    return {
        "found": found(document),
        "next_command": document["next_command"],
        "next_reason": document["next_reason"],
        "report": document,
        "ranks": ranks_json(engine),
        "classes": [item.to_json() for item in classes],
        "pace": steps_json(engine),
        "arrivals": arrivals_json(engine),
        "text": classes_text(classes, 100),
    }


def finish_document(document: dict[str, Any], timer: Timer) -> None:
    """Say what it all cost."""
    document["seconds"] = round(time.monotonic() - timer.began, 3)
    document["probes"] = [row for row in document["probes"] if row["rank"] is not None] + timer.steps


# --- native frames


def native_ranks(engine: Engine) -> list[int]:
    """One rank of each class of stacks; where those are too many, the ones that differ from the most
    others. None that is stopped: what a ptrace stop within a stop leaves behind is the kernel's secret, and
    it runs no C code now."""
    ranks = engine.job.ranks
    classes = [item for item in stack_classes(engine) if item.kind == "rank"]
    classes.sort(key=lambda item: item.count)
    if len(classes) > _MOST_NATIVE:  # and one of the crowd, to compare with
        classes = [*classes[: _MOST_NATIVE - 1], classes[-1]]
    stopped = {number for number, rank in ranks.items() if rank.tree and rank.tree.main.state in "Tt"}
    running = [[rank for rank in item.ranks if rank not in stopped] for item in classes]
    return sorted(members[0] for members in running if members)


def add_native(document: dict[str, Any], ranks: list[int], answers: dict[int, dict[str, Any]]) -> None:
    """C and Python frames as py-spy gives them, innermost first, with what it cost the rank."""
    document["native"] = []
    for rank in ranks:
        answer = answers.get(rank) or {"seconds": None, "missing": ["its sidecar did not answer in time"]}
        payload = answer.get("native") or {}
        reasons = [
            *answer.get("missing", ()),
            *([payload.get("stderr") or payload["failed"]] if "failed" in payload else []),
        ]
        threads = sorted(
            payload.get("stdout", ()), key=lambda thread: thread.get("os_thread_id") != payload["pid"]
        )
        reason, seconds = "; ".join(reasons), answer["seconds"]
        document["native"].append(
            {
                "rank": rank,
                "pid": payload.get("pid"),
                "seconds": seconds,
                "reason": reason,
                "threads": [_native_thread(thread) for thread in threads],
            }
        )
        row = probe_row("native_stack", seconds, reason, paused_target=True)
        document["probes"].append({"rank": rank, **row, "reader": "pyspy"})


def _native_thread(thread: dict[str, Any]) -> dict[str, Any]:
    frames = [
        f"{frame['name']} ({frame.get('filename') or '?'}:{frame.get('line') or 0})"
        for frame in thread["frames"]
    ]
    return {
        "name": thread.get("thread_name"),
        "id": thread.get("os_thread_id"),
        "frames": frames[:_MOST_NATIVE_FRAMES],
    }


# --- the bundle


def manifest_facts(hub: NodeHub) -> dict[str, Any]:
    """What a person elsewhere must know to read the bundle. Of environments only the allow-list; of CMD no
    secrets.

    The hub's lock is held by the caller.
    """
    job = hub.engine.job
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python_version": platform.python_version(),
        "argv": list(job.run.argv),
        "world_size": job.world_size,
        "ranks_seen": len(job.ranks),
        "processes": [
            {
                "rank": number,
                "pid": rank.placement.pid,
                "host": rank.placement.host,
                "alive": rank.alive,
                "environment": hub.environment.get(number, {}),
            }
            for number, rank in sorted(job.ranks.items())
        ],
    }


def write_bundle(
    document: dict[str, Any],
    facts: dict[str, Any],
    run_dir: Path,
    path: Path,
    *,
    most_bytes: int | None = None,
    beside: Mapping[str, str] | None = None,
) -> None:
    """Write journal, report and merged stacks into one file, and the texts of `beside` under their names. A full disk
    leaves no half bundle and is noted.

    Of a journal that is larger than `most_bytes` leaves, the middle is left out, which the manifest says.
    """
    temporary = path.with_suffix(".part")
    try:
        with contextlib.ExitStack() as stack:
            files: list[tuple[str, IO[bytes], int, str]] = []
            indent = 1 if len(document["ranks"]) <= _MOST_INDENTED else None
            texts = {
                "dump.json": json.dumps(document, indent=indent),
                "stacks.txt": dump_text(document, colour=False, width=100),
                **process_texts(document.get("processes", ())),
                **(beside or {}),
            }
            for name, text in texts.items():
                data = text.encode("utf-8", "backslashreplace")
                files.append((name, io.BytesIO(data), len(data), hashlib.sha256(data).hexdigest()))
            written = segments(run_dir)
            taken = written
            if most_bytes is not None:
                taken = _that_fit(written, most_bytes - sum(size for _, _, size, _ in files))
            for segment in taken:
                # the journal dropped it meanwhile, to keep its size
                with contextlib.suppress(FileNotFoundError):
                    file: IO[bytes] = stack.enter_context(open(segment, "rb"))
                    if segment == written[-1]:
                        file = _closed(file)
                    files.append((segment.name, file, *_digest(file)))
            manifest = {
                "schema": _BUNDLE_SCHEMA,
                **{name: document[name] for name in ("run_id", "diag_version", "host", "at")},
                "ranks": len(document["ranks"]),
                "missing": document["missing"],
                **facts,
                "versions": document["versions"],
                **(
                    {"left_out": [one.name for one in written if one not in taken]}
                    if taken != written
                    else {}
                ),
                "files": [{"name": name, "bytes": size, "sha256": digest} for name, _, size, digest in files],
            }
            data = json.dumps(manifest, indent=1).encode("utf-8", "backslashreplace")
            # The journal is packed already: packing 256 MiB of it again takes 8 s, storing it 0.5 s (2 busy
            # cores).
            with tarfile.open(temporary, "w:gz", compresslevel=0) as tar:
                _add(tar, "manifest.json", io.BytesIO(data), len(data))
                for name, content, size, _ in files:
                    _add(tar, name, content, size)
        temporary.replace(path)
        document["bundle"] = str(path)
    except OSError as error:
        document["bundle_error"] = f"{error.strerror or error}"
        with contextlib.suppress(OSError):
            temporary.unlink()


def _that_fit(written: list[Path], most_bytes: int) -> list[Path]:
    """The newest segment of the journal always; then the first, which shows how the job began; then those before the
    newest."""
    taken: list[Path] = []
    held = 0
    for segment in dict.fromkeys([*written[-1:], *written[:1], *written[-2:0:-1]]):
        try:
            size = segment.stat().st_size
        except OSError:  # the journal dropped it meanwhile
            continue
        if taken and held + size > most_bytes:
            break
        held += size
        taken.append(segment)
    return sorted(taken)


def _digest(file: IO[bytes]) -> tuple[int, str]:
    """Size and sha256 of what is there now."""
    left = size = file.seek(0, os.SEEK_END)
    file.seek(0)
    digest = hashlib.sha256()
    while left and (chunk := file.read(min(left, 1 << 20))):
        digest.update(chunk)
        left -= len(chunk)
    file.seek(0)
    return size - left, digest.hexdigest()


def _closed(file: IO[bytes]) -> IO[bytes]:
    """The newest segment, which grows on, as a whole gzip file: `zcat` reads it without complaint."""
    kept, end = whole(file, file.seek(0, os.SEEK_END))
    file.seek(0)
    return io.BytesIO(file.read(kept) + end)


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mtime = int(time.time())
    entry.mode = 0o600
    tar.addfile(entry, file)
