"""What a dump read of each process, as text: `proc/rank3.txt` of a bundle, the rank first and its children behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diag.text.sanitize import clean
from diag.text.units import format_bytes


def process_texts(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """By the name of the file in the bundle."""
    files: dict[str, list[str]] = {}
    for row in rows:
        files.setdefault(f"proc/rank{row['rank']}.txt", []).extend([*_lines(row), ""])
    return {name: "\n".join(map(clean, lines)) + "\n" for name, lines in files.items()}


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"pid {row['pid']}: {row.get('command') or '(command line not read)'}"
    for reason in row["not_checked"]:
        yield f"not checked: {reason}"
    if "threads" in row:
        yield from _threads(row["threads"])
    if "open_files" in row:
        yield from _files(row["open_files"])
    for name in ("limits", "status"):
        if row.get(name):
            yield ""
            yield f"{name}:"
            yield from (f"  {line.expandtabs()}" for line in str(row[name]).splitlines())
    if "memory_map" in row:
        yield from _map(row["memory_map"])


def _threads(found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"threads ({found['count']}): id, state, name, kernel function, system call"
    for one in found["listed"]:
        line = f"  {one['tid']:>8} {one['state']} {one['name']:<16} {one.get('wchan', '-'):<24} {one.get('call', '')}"
        yield line.rstrip()
    yield from _more(found["count"] - len(found["listed"]), "threads")


def _files(found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"open files ({found['count']}):"
    for one in found["listed"]:
        about = (
            f"   {one['socket']}"
            if "socket" in one
            else f"   ({one['mode']}, at {one['at']})"
            if "mode" in one
            else ""
        )
        yield f"  {one['fd']:>5} -> {one['to']}{about}"
    rest = ", ".join(f"{count} {kind}" for kind, count in found["more"].items())
    yield from [f"  and {sum(found['more'].values())} more: {rest}"] if rest else []


def _map(found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "memory map (address space, of which only a part is resident):" + (
        "" if found["whole"] else " cut off, the sums are of its beginning"
    )
    for kind, size in found["bytes"].items():
        yield f"  {format_bytes(size):>12} {kind}"
    yield "libraries:"
    for one in found["libraries"]:
        yield f"  {format_bytes(one['bytes']):>12} {one['of'] or '-':<7} {one['path']}"
    yield from _more(found["libraries_left_out"], "libraries")


def _more(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"  and {count} more {what}"
