"""The machine's driver: does part after part and says each one's answer as a line of JSON on stdout (the
second serial port)."""

from __future__ import annotations

import importlib
import json
import re
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.vm.guest.parts import Part, Parts

SUITES = ("rdma", "memory")  # each a module tests.vm.SUITE.guest.suite with `PARTS`
ALWAYS = ("network", "cgroups")  # what the other parts stand on
_AT_ONCE = 3  # on two cores
_saying = threading.Lock()


def main() -> None:
    _say("boot", lambda: {"uptime": Path("/proc/uptime").read_text().split()[0]})
    suites = _words("suites") or SUITES
    wanted: list[Parts] = [importlib.import_module(f"tests.vm.{suite}.guest.suite").PARTS for suite in suites]
    named = _words("parts")
    for parts in wanted:
        for name, part in _chosen(parts.first, named):
            _say(name, part)
    with ThreadPoolExecutor(_AT_ONCE) as runs:
        for parts in wanted:
            for name, part in _chosen(parts.together, named):
                runs.submit(_say, name, part)
    for parts in wanted:
        for name, part in _chosen(parts.alone, named):
            _say(name, part)


def _chosen(parts: dict[str, Part], named: list[str]) -> list[tuple[str, Part]]:
    return [(name, part) for name, part in parts.items() if not named or name in named or name in ALWAYS]


def _words(name: str) -> list[str]:
    """Of the kernel's command line: name=A,B."""
    found = re.search(rf"\b{name}=(\S+)", Path("/proc/cmdline").read_text())
    return found[1].split(",") if found else []


def _say(name: str, part: Part) -> None:
    began = time.monotonic()
    answer: dict[str, Any] = {"part": name}
    try:
        answer["result"] = part()
    except Exception:  # told to whoever judges; the other parts are not concerned
        answer["error"] = traceback.format_exc()
    answer["seconds"] = round(time.monotonic() - began, 2)
    with _saying:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
