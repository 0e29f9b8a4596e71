"""`python -m tests.labs.public_logs.windows --batch 2`: whether every piece of a failing log that holds its decisive line
names the same root as the whole log, with whatever people's tools put before the lines."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from diag.engine.replay import replay
from diag.outputs.report import report
from diag.text.errors import DiagError
from tests.labs.public_logs.__main__ import HERE, ROOT, text_of, verdict

_BAR = "\rEpoch 1:  12%|█▏        | 12/100 [00:10<01:20,  1.10it/s]"
_LONGEST = 600  # characters of a line that somebody pastes
_BEFORE = {
    "kubectl --prefix": "[pod/train-worker-0/pytorch] ",
    "stern": "train-worker-0 pytorch ",
    "docker compose": "trainer-1  | ",
    "docker --timestamps": "2025-03-04T05:06:07.123456789Z ",
    "journalctl": "Mar 04 05:06:07 gpu-node-3 train.sh[4242]: ",
    "srun --label": "3: ",
    "pdsh": "node07: ",
    "torchrun --tee": "[default3]:",
    "grep -n": "1042:",
    "markdown quote": "> ",
    "indented": "    ",
}


def pieces(lines: list[str], root: int) -> Iterator[tuple[str, str]]:
    """What people paste of the log, by name; `root` counts from 0."""
    yield "whole", "\n".join(lines)
    yield "the line alone", lines[root].rstrip("\r").rpartition("\r")[2][-_LONGEST:] + "\n"
    for count in (20, 50, 200):
        yield f"{count} lines up to it", "\n".join(lines[max(0, root - count + 1) : root + 1]) + "\n"
        yield (
            f"{count} lines around it",
            "\n".join(lines[max(0, root - count // 2) : root + count // 2 + 1]) + "\n",
        )
    part = [line.rstrip("\r").rpartition("\r")[2] for line in lines[max(0, root - 19) : root + 1]]
    for name, before in _BEFORE.items():
        yield name, "".join(f"{before}{line}\n" for line in part)
    yield "colours", "".join(f"\x1b[31m{line}\x1b[0m\n" for line in part)
    yield "CRLF", "".join(f"{line}\r\n" for line in part)
    yield "behind bars", _BAR * 2 + "\n".join(part)
    yield "markdown fence", "\n".join(["```", *part, "```"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.public_logs.windows", description=__doc__)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument(
        "--texts", type=Path, default=ROOT / "build" / "public_logs", help="folder of NAME.log"
    )
    options = parser.parse_args()
    counts: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for label in yaml.safe_load((HERE / f"batch_{options.batch}.yaml").read_text()):
            path = text_of(label, options.texts) if label["failing"] else None
            if path is None:
                continue
            log = path.read_bytes().decode(errors="replace")
            for name, text in pieces(log.split("\n"), label["root"][0] - 1):
                piece = Path(folder, "piece.log")
                piece.write_text(text)
                try:
                    findings = report(replay([piece])[0])["findings"]
                except DiagError as error:
                    print(f"{label['name']}: {name}: {error}", file=sys.stderr)
                    findings = []
                named = verdict(label, log, findings) == "root"
                counts[name, named] += 1
                if not named:
                    print(f"{label['name']}: {name}", file=sys.stderr)
    for name in dict.fromkeys(name for name, _ in counts):
        print(f"{name:24} {counts[name, True]} of {counts[name, True] + counts[name, False]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
