"""The answer to `diag dump`: a `diag.dump/1` document, and the bundle file that `diag replay` reads back."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diag.capture import segments
from diag.engine import report
from diag.outputs.text import classes_text, dump_text
from diag.outputs.view import ranks_json, stack_classes

if TYPE_CHECKING:
    from diag.hub import Hub

__all__ = ["dump_document", "dump_text", "write_bundle"]

SCHEMA = "diag.dump/1"
_BUNDLE_SCHEMA = "diag.bundle/1"


def dump_document(hub: Hub, answers: dict[int, dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Everything a person needs at once. Every rank is either in `classes` with a stack or in `missing` with a reason.

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
        "seconds": round(seconds, 3),
        "report": report(engine),
        "ranks": ranks_json(engine),
        "classes": [item.to_json() for item in stack_classes(engine)],
        "missing": missing,
        "probes": [
            {"rank": rank, "probe": "sidecar", "seconds": answer.get("seconds", 0.0), "paused_target": False}
            for rank, answer in sorted(answers.items())
        ],
        "text": classes_text(stack_classes(engine), 100),
    }


def write_bundle(document: dict[str, Any], run_dir: Path, path: Path) -> None:
    """Write journal, report and merged stacks into one file. A full disk leaves no half bundle and is noted."""
    temporary = path.with_suffix(".part")
    try:
        # The journal is packed already: packing 256 MiB of it again takes 8 s, storing it 0.5 s (2 busy cores).
        with tarfile.open(temporary, "w:gz", compresslevel=0) as tar:
            manifest = {
                "schema": _BUNDLE_SCHEMA, "run_id": document["run_id"], "diag_version": document["diag_version"],
                "host": document["host"], "at": document["at"], "ranks": len(document["ranks"]),
            }
            _add(tar, "manifest.json", json.dumps(manifest, indent=1).encode())
            _add(tar, "dump.json", json.dumps(document, indent=1).encode("utf-8", "backslashreplace"))
            _add(tar, "stacks.txt", dump_text(document, colour=False, width=100).encode("utf-8", "backslashreplace"))
            for segment in segments(run_dir):
                with contextlib.suppress(FileNotFoundError):  # the journal dropped it meanwhile, to keep its size
                    _add(tar, segment.name, segment.read_bytes())
        temporary.replace(path)
        document["bundle"] = str(path)
    except OSError as error:
        document["bundle_error"] = f"{error.strerror or error}"
        with contextlib.suppress(OSError):
            temporary.unlink()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mtime = int(time.time())
    entry.mode = 0o600
    tar.addfile(entry, io.BytesIO(data))
