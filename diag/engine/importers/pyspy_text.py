"""The text that `py-spy dump` prints, made into the JSON that `py-spy dump --json` would have printed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

# py-spy 0.4.3, H200 machine, 2026-11-20; the second form is that of --native, whose frames of C code have no
# line:
#   Process 751: /usr/local/bin/python3 /app/train.py
#   Thread 751 (active+gil): "MainThread"
#       synchronize (torch/cuda/__init__.py:1162)
#       cuCtxSynchronize_v2 (libcuda.so.580.159.04)
# Without its first line it is what people cut out and paste, with the marks of a chat or a mail around it.
_PROCESS = re.compile(r"Process (\d{1,10}): ")
# py-spy says idle, active or active+gil; faulthandler's "(most recent call first)" is more than one word.
_THREAD = re.compile(r"Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \(([\w+]{1,20})\)(?:: \"(.{0,200})\")?\s*$")
# Not `name: value`, which --locals prints below a frame.
_FRAME = re.compile(r"((?:(?!: ).){1,500}) \((.{1,1000}):(\d{1,9})\)\s*$")
# cuCtxSynchronize_v2 (libcuda.so.580.159.04); with debug information: ncclGroupEnd (group.cc:106)
_NATIVE = re.compile(
    r"((?!0x)(?:(?!: ).){1,500}) \(((?:lib)?[^\s()]{1,300}\.(?:so|cc|cpp|cu|c|h)\b[^()\s]{0,100})\)$"
)
_AROUND = re.compile(r"^[\s>|]+|\x1b\[[0-9;]*m")
_NOTHING = re.compile(
    r"(?:`{3,}|~{3,})\w*$|Python v\d|Parent Process \d|.{0,100}[$#>] .{0,100}\bpy-spy dump\b|py-spy dump\b"
)
# "<string>", "<frozen runpy>"; C code with debug information has lines too
_PYTHON = (".py", ".pyx", ".pyi", ">")
_LONGEST_LINE = 4000
_MOST_THREADS = 500
_MOST_FRAMES = 1000
_MOST_PROCESSES = 512
_LARGEST_PID = 1 << 22  # of Linux; a thread's number of the interpreter's own is an address


@dataclass(slots=True)
class DumpedProcess:
    """`pid`: 0 where the text does not tell. `threads` as `py-spy dump --json` has them, frames innermost first."""

    pid: int = 0
    threads: list[dict[str, Any]] = field(default_factory=list)


def is_dump(text: str) -> bool:
    """Whether it begins as one, whatever follows."""
    first = next((line for line in map(_plain, text.splitlines()) if line and not _NOTHING.match(line)), "")
    return bool(_PROCESS.match(first) or _THREAD.match(first))


def holds_dump(text: str) -> bool:
    """Whether a thread's stack stands anywhere in it."""
    if "Thread " not in text:
        return False
    lines = [line for line in map(_plain, text.splitlines()) if line]
    return any(_THREAD.match(one) and _frame(after) for one, after in pairwise(lines))


def processes_of_text(text: str) -> tuple[list[DumpedProcess], bool]:
    """Each process of one or several dumps, and whether anything but dumps stands there. Without its first line a dump
    ends where a thread comes again."""
    found: list[DumpedProcess] = []
    more = inside = False
    for line in map(_plain, text.splitlines()):
        if not line or _NOTHING.match(line):
            continue
        begins, head = _PROCESS.match(line), _THREAD.match(line)
        if begins or head:
            inside = True
        if begins and len(found) < _MOST_PROCESSES:
            found.append(DumpedProcess(int(begins[1])))
        elif head:
            thread = _thread(head)
            if not found or (_is_there(thread, found[-1]) and len(found) < _MOST_PROCESSES):
                found.append(DumpedProcess())
            if len(found[-1].threads) < _MOST_THREADS:
                found[-1].threads.append(thread)
        elif frame := _frame(line) if inside and found and found[-1].threads else None:
            frames = found[-1].threads[-1]["frames"]
            if len(frames) < _MOST_FRAMES:
                frames.append(frame)
        elif inside and found and found[-1].threads and (native := _NATIVE.match(line)):
            names = found[-1].threads[-1].setdefault("native", [])
            if len(names) < _MOST_FRAMES:
                names.append(f"{native[1]} {native[2]}")
        elif not inside or not _of_frame(line):
            more, inside = True, False
    for one in found:
        one.pid = one.pid or _pid_of_main(one)
        for thread in one.threads:
            thread["pid"] = one.pid
    return found, more


def threads_of_text(text: str) -> tuple[int, list[dict[str, Any]]] | None:
    """Pid and threads of the first process, innermost frame first; None when it is no such text. Lines that say nothing
    are left out."""
    found, _ = processes_of_text(text)
    return (found[0].pid, found[0].threads) if found else None


def _plain(line: str) -> str:
    return _AROUND.sub("", line[:_LONGEST_LINE]).rstrip()


def _thread(head: re.Match[str]) -> dict[str, Any]:
    # not 0: a leading zero is none of Python's numbers
    number = int(head[1], 16 if head[1].startswith("0x") else 10)
    return {
        "thread_id": number,
        "os_thread_id": number,
        "thread_name": head[3],
        "active": not head[2].startswith("idle"),
        "owns_gil": "gil" in head[2],
        "frames": [],
    }


def _frame(line: str) -> dict[str, Any] | None:
    frame = _FRAME.match(line)
    if frame is None or not frame[2].endswith(_PYTHON):
        return None
    return {"name": frame[1], "filename": _long_name(frame[2]), "line": int(frame[3])}


def _of_frame(line: str) -> bool:
    """A frame of C code (`cuCtxSynchronize_v2 (libcuda.so.580)`), or what --locals prints below one."""
    return (
        line.endswith(")") or line in ("Arguments:", "Locals:") or re.match(r"\w{1,200}: ", line) is not None
    )


def _is_there(thread: dict[str, Any], process: DumpedProcess) -> bool:
    names = {"MainThread"} & {thread["thread_name"]}
    return any(
        one["thread_id"] == thread["thread_id"] or one["thread_name"] in names for one in process.threads
    )


def _pid_of_main(process: DumpedProcess) -> int:
    """On Linux the main thread has the number of its process, where py-spy prints the system's numbers."""
    main = next((one for one in process.threads if one["thread_name"] == "MainThread"), None)
    return main["thread_id"] if main is not None and main["thread_id"] <= _LARGEST_PID else 0


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
