"""Every parser of diag.sources.parsers.PARSERS, by way of the engine: payloads as recorded, changed in any
place."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from diag.model import Record
from diag.sources import digest as digest_source
from diag.sources.gpu import cuda_coredump
from diag.sources.host.job_files import Files
from diag.sources.parsers import PARSERS
from diag.sources.stacks import program
from tests.labs.fuzz.targets.base import CAPTURES, Target, payloads, told
from tests.labs.fuzz.targets.wire import a_digest, a_verdict
from tests.sources.test_npu_smi import A2, A3

__all__ = ["TARGETS"]


def _made(source: str) -> list[Any]:
    """Payloads of sources that no recorded journal has."""
    if source == digest_source.SOURCE:
        return [a_digest(), digest_source.probed("run-1", "gpu-1", "timeout", 3.0)]
    if source == digest_source.VERDICT_SOURCE:
        return [a_verdict(), digest_source.lost("no hub answers")]
    if source == "faulthandler":
        text = (CAPTURES / "stacks" / "README.md").read_text()[:200]
        thread = 'Thread 0x00007f3c5d7fa640 [pt_autograd] (most recent call first):\n  File "/app/train.py", line 64 in main\n'
        main = 'Current thread 0x00007f3c9e1c1740 (most recent call first):\n  File "/app/train.py", line 3 in <module>\n  ...\n'
        return [
            {"pid": 20, "text": thread + main},
            {"pid": 20, "text": thread + text},
            {"pid": 20, "failed": "denied", "detail": "x"},
        ]
    if source == "proc":  # of a rank that a debugger holds, and that diag has paused
        one = dict(next(json.loads(text) for text in payloads(source) if '"stat"' in text))
        return [{**one, "tracer": {"pid": 812, "comm": "gdb"}, "pauses": 4}]
    if source == "child_exits":
        return [{"pid": 812, "status": 9}, {"pid": 813, "status": 256}]
    if source == "npu_smi":
        return [{"text": A2}, {"text": A3}]
    if source == "store":
        return [{"pid": 7, "host": "10.9.9.9", "port": 29500, "node": 1, "pending": True, "over": False},
                {"pid": 7, "host": "gpu-0", "port": 29500, "node": None, "pending": False, "over": True}]  # fmt: skip
    if source == "program":
        here = __file__
        lines = dict.fromkeys(range(1, len(Path(here).read_text().splitlines())), "_made")
        return [{"pid": 7, "files": {here: program.read(Files(), here, lines, float("inf"))}},
                {"pid": 7, "files": {"/app/train.py": {"failed": "changed"}}}]  # fmt: skip
    if source == "variables":
        told = [
            ["step", "61"],
            ["cfg.run_dir", "PosixPath('runs/13-07')"],
            ["token", "***"],
            ["out", "<list of 9 Tensor>"],
        ]
        frame = {"function": "train", "file": "/app/train.py", "line": 7, "called": False, "values": told}
        send = {
            **frame,
            "function": "send",
            "file": "/env/torch/distributed/distributed_c10d.py",
            "called": True,
        }
        stacked = {"id": 7, "name": "MainThread", "frames": [frame, {**send, "values": [["dst", "1"]]}]}
        return [{"pid": 7, "threads": [stacked]}, {"pid": 9, "parent_pid": 7, "threads": [stacked]},
                {"pid": 7, "failed": "denied", "detail": "Permission denied"}]  # fmt: skip
    if source == "software":
        packages = {"torch": "2.11.0+cu130", "deepspeed": "0.17.5 and 0.18.4"}
        return [{"pid": 7, "python": "3.12.1", "kernel": "6.1.0", "driver": "580.159.04", "packages": packages},
                {"pid": 7, "python": "", "kernel": "6.1.0", "driver": "", "packages": None}]  # fmt: skip
    if source == "native_stack":
        frames = [
            "PyThread_acquire_lock_timed /usr/bin/python3.12",
            "cuStreamSynchronize /usr/lib/libcuda.so.1",
        ]
        return [{"pid": 7, "frames": frames}, {"pid": 7, "frames": []}]
    if source == "cuda_coredump":
        import gzip
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, "core")
            place.write_bytes(gzip.decompress((CAPTURES / "gpu" / "own_kernel.cudacore.gz").read_bytes()))
            return [cuda_coredump.load_file(place)]
    return []


def _seeds(source: str) -> list[bytes]:
    texts = [*payloads(source), *map(json.dumps, _made(source))]
    return [f"[0, {text}]".encode() for text in texts] + [
        f"[null, {text}, {text}]".encode() for text in texts[:5]
    ]


def _run(source: str, data: bytes, home: Path) -> None:
    try:
        rank, *rest = json.loads(data)
        if rank is not None and not (type(rank) is int and 0 <= rank < 1 << 20):
            rank = 0
    except (ValueError, TypeError, RecursionError):
        return
    told(
        Record(source, payload, rank, "node0", 1010.0 + at, 1010.0 + at)
        for at, payload in enumerate(rest[:50])
    )


TARGETS = tuple(
    Target(
        f"record-{source.replace('_', '-')}",
        f"payloads of `{source}` in journals",
        "json",
        functools.partial(_seeds, source),
        functools.partial(_run, source),
    )
    for source in PARSERS
)
