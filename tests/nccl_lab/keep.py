"""Turns what lab.py wrote into captures: python keep.py FROM TO (folders of versions).

Shortens, and takes out what names a machine.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES

# Said once a channel, connection or queue: two of each are kept.
_MANY = re.compile(
    rb"Channel \d|proxy|Could not get speed|NCCL Dev|_ece|QP created|Set ECE|Connected to|Regist"
)
_DIGITS = re.compile(rb"0x[0-9a-f]+|\d+")
_UUID = re.compile(rb"(?:GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_KEPT = 2


def shorten(text: bytes) -> bytes:
    kept, seen = [], dict[bytes, int]()
    for line in text.splitlines(keepends=True):
        if _MANY.search(line) and b" WARN " not in line:
            shape = _DIGITS.sub(b"#", line)
            seen[shape] = seen.get(shape, 0) + 1
            if seen[shape] > _KEPT:
                continue
        kept.append(_UUID.sub(b"GPU-00000000-0000-0000-0000-000000000000", line))
    return b"".join(kept)


def main() -> None:
    expected = {case.name: case.expect for case in CASES}
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    for manifest in sorted(source.glob("*/manifest.json")):
        folder = target / manifest.parent.name
        told = json.loads(manifest.read_text())
        for case in told["cases"]:
            case["expect"] = expected.get(case["case"], case["expect"])
            to = folder / case["case"]
            shutil.rmtree(to, ignore_errors=True)
            to.mkdir(parents=True)
            for log in sorted((manifest.parent / case["case"]).glob("*.log")):
                (to / log.name).write_bytes(shorten(log.read_bytes()))
            case["files"] = sorted(log.name for log in to.iterdir())
        told["cases"].sort(key=lambda case: case["case"])
        for entry in folder.iterdir():
            if entry.is_dir() and entry.name not in {case["case"] for case in told["cases"]}:
                shutil.rmtree(entry)
        (folder / "manifest.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
