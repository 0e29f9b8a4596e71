"""Evidence for replays: a short story of records, archives, journals."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from diag.engine.journal import SCHEMA
from diag.engine.replay import replay
from diag.model import Placement, Record
from diag.outputs.report import report
from diag.sources.host import run as run_source
from diag.sources.logs.output import SOURCE as OUTPUT

LOGS = Path(__file__).parent / "captures" / "logs"


def story() -> list[Record]:
    """Rank 1 of two is killed."""
    made = [run_source.started(["torchrun", "train.py"], 10, "node0", 2)]
    made += [
        run_source.rank_found(Placement(r, r, 2, "node0", 20 + r, 5), "python train.py", {}) for r in (0, 1)
    ]
    made.append(
        Record(OUTPUT, {"stream": "stdout", "lines": [["[INFO:swift] The training of Epoch 0 starts...", 0]]})
    )
    made.append(Record("exits", {"pid": 21, "status": 9, "how": "pidfd"}, rank=1, host="node0"))
    made.append(run_source.ended(1, "node0"))
    return [Record(r.source, r.payload, r.rank, r.host, 1000.0 + n, 1000.0 + n) for n, r in enumerate(made)]


def found_in(*paths: Path) -> list[str]:
    engine, _, _ = replay(list(paths))
    return [finding["id"] for finding in report(engine)["findings"]]


def member(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, data


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for entry, data in members:
            tar.addfile(entry, io.BytesIO(data))
    return path


def journal_bytes(*lines: Any) -> bytes:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in ({"schema": SCHEMA}, *lines)]
    return gzip.compress("\n".join([*texts, ""]).encode())
