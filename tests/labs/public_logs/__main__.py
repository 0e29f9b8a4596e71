"""`python -m tests.labs.public_logs --batch 1`: get the texts, replay each, and count what the first finding quotes.

A text that is not in the folder of texts is fetched from its repository; one whose digest is another is left out.
Whether a finding that quotes another line is right all the same, and whether its remedy helps, is for a judge: the
sheet that this writes shows label and report side by side.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from diag.engine.importers.notebook import value_of
from diag.knowledge.log_prefix import without_outer

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
_ANSI = re.compile(r"\x1b\[[0-9;]*[mK]")
_BAR = re.compile(r".{0,400}%\|.{0,400}\[[^\]]{0,300}\](?=\S)")
_SECONDS = 300  # for one log


def text_of(label: dict[str, Any], texts: Path) -> Path | None:
    """The label's text in that folder, fetched where it is not there; None where it cannot be had as it was."""
    path = texts / f"{label['name']}.log"
    if not path.exists():
        place = urllib.parse.quote(f"{label['repo']}/{label['commit']}/{label['path']}")
        try:
            with urllib.request.urlopen(f"https://raw.githubusercontent.com/{place}", timeout=60) as answer:
                data = answer.read()
        except OSError as error:
            print(f"{label['name']}: {error}", file=sys.stderr)
            return None
        if label["lines"]:
            first, last = label["lines"]
            data = b"".join(re.findall(rb"[^\n]*\n|[^\n]+$", data)[first - 1 : last])
        path.write_bytes(data)
    if hashlib.sha256(path.read_bytes()).hexdigest() != label["sha256"]:
        print(f"{label['name']}: {path} is not the text that was labelled", file=sys.stderr)
        return None
    return path


def _bare(text: str) -> str:
    return " ".join(_ANSI.sub("", text).split())


def verdict(label: dict[str, Any], log: str, findings: list[dict[str, Any]]) -> str:
    """root, other or nothing of a failing log; clean or alarm of a healthy one."""
    if not label["failing"]:
        return "alarm" if any(one["severity"] in ("warning", "critical") for one in findings) else "clean"
    if not findings:
        return "nothing"
    lines = log.split("\n")
    printed = [
        lines[number - 1].rstrip("\r").rpartition("\r")[2] for number in label["root"] if number <= len(lines)
    ]
    # what is quoted comes without the prefixes of containers and launchers, the bar before it, or a notebook's JSON
    roots = [
        _bare(text)
        for line in printed
        for text in (line, without_outer(line), _BAR.sub("", line), value_of(line))
    ]
    first = findings[0]
    quoted = _bare(" ".join([first["summary"], *(item["excerpt"] for item in first["evidence"])]))
    return (
        "root" if any(root and (root[:60] in quoted or root[-60:] in quoted) for root in roots) else "other"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.public_logs", description=__doc__)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--texts", type=Path, default=ROOT / "build" / "public_logs", help="folder of NAME.log"
    )
    options = parser.parse_args()
    options.texts.mkdir(parents=True, exist_ok=True)
    labels = yaml.safe_load((HERE / f"batch_{options.batch}.yaml").read_text())
    counts: Counter[tuple[str, str]] = Counter()
    sheet: list[str] = []
    for label in labels:
        path = text_of(label, options.texts)
        if path is None:
            counts[("not checked", "no text")] += 1
            continue
        words = [sys.executable, "-m", "diag", "replay", str(path)]
        done = subprocess.run(
            [*words, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        findings = json.loads(done.stdout)["findings"] if done.stdout else []
        what = verdict(label, path.read_bytes().decode(errors="replace"), findings)
        short = label["form"] == "excerpt" or path.read_bytes().count(b"\n") <= 20
        counts[
            ("failing, short" if short else "failing, whole") if label["failing"] else "healthy", what
        ] += 1
        shown = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False
        ).stdout
        sheet += [
            f"## {label['name']}",
            "",
            yaml.safe_dump(label, allow_unicode=True),
            "```text",
            shown,
            "```",
            "",
        ]
        print(f"{label['name']:45} {what}")
    (options.texts / f"batch_{options.batch}-sheet.md").write_text("\n".join(sheet))
    for (kind, what), number in sorted(counts.items()):
        print(f"{kind}: {what} {number}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
