"""The text that `py-spy dump` prints, made into the JSON that `py-spy dump --json` would have printed."""

from __future__ import annotations

import re
from typing import Any

# py-spy 0.4.3, H200 machine, 2026-11-20; the second form is that of --native, whose frames of C code have no
# line:
#   Process 751: /usr/local/bin/python3 /app/train.py
#   Thread 751 (active+gil): "MainThread"
#       synchronize (torch/cuda/__init__.py:1162)
#       cuCtxSynchronize_v2 (libcuda.so.580.159.04)
_PROCESS = re.compile(r"Process (\d{1,10}): ")
_THREAD = re.compile(r"Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \(([\w+ ]{1,40})\)(?:: \"(.{0,200})\")?")
_FRAME = re.compile(r" {4}(.{1,500}) \((.{1,1000}):(\d{1,9})\)$")
# "<string>", "<frozen runpy>"; C code with debug information has lines too
_PYTHON = (".py", ".pyx", ".pyi", ">")
_MOST_THREADS = 500
_MOST_FRAMES = 1000


def threads_of_text(text: str) -> tuple[int, list[dict[str, Any]]] | None:
    """Pid and threads, innermost frame first; None when it is no such text. Lines that say nothing are left
    out."""
    match = _PROCESS.match(text)
    if match is None:
        return None
    pid = int(match[1])
    threads: list[dict[str, Any]] = []
    for line in text.splitlines():
        head = _THREAD.match(line)
        if head and len(threads) < _MOST_THREADS:
            # not 0: a leading zero is none of Python's numbers
            number = int(head[1], 16 if head[1].startswith("0x") else 10)
            threads.append(
                {
                    "pid": pid,
                    "thread_id": number,
                    "os_thread_id": number,
                    "thread_name": head[3],
                    "active": head[2].startswith("active"),
                    "owns_gil": "gil" in head[2],
                    "frames": [],
                }
            )
            continue
        frame = _FRAME.match(line)
        if frame and frame[2].endswith(_PYTHON) and threads and len(threads[-1]["frames"]) < _MOST_FRAMES:
            name = _long_name(frame[2])
            threads[-1]["frames"].append({"name": frame[1], "filename": name, "line": int(frame[3])})
    return pid, threads


def _long_name(file: str) -> str:
    """py-spy prints a file from the first folder with an __init__.py on: of megatron-core, whose `megatron`
    has none, `core/`."""
    return f"megatron/{file}" if file.startswith("core/") else file


def with_names_of(threads: list[dict[str, Any]], whole: list[dict[str, Any]]) -> None:
    """Give frames of a text the whole file names that a JSON dump of the same process has for them: the two
    must compare."""
    names = {
        frame["short_filename"]: frame["filename"]
        for thread in whole
        if isinstance(thread, dict)
        for frame in thread.get("frames") or ()
        if isinstance(frame, dict)
        and isinstance(frame.get("short_filename"), str)
        and isinstance(frame.get("filename"), str)
    }
    names.update({_long_name(short): file for short, file in names.items()})
    for thread in threads:
        for frame in thread["frames"]:
            frame["filename"] = names.get(frame["filename"], frame["filename"])
