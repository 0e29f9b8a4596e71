"""Write what is kept of every capture anew, and print what changed: `make goldens`."""

from __future__ import annotations

import difflib
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.goldens import KEPT, goldens, kept, replayed, sections


def main() -> int:
    groups: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for golden in goldens():
        with tempfile.TemporaryDirectory() as place:
            groups[golden.group][golden.name] = replayed(golden, Path(place))
    changed = 0
    for group in sorted({*groups, *(path.stem for path in KEPT.glob("*.txt"))}):
        before, now = kept(group), groups.get(group, {})
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                changed += 1
                print(
                    *difflib.unified_diff(
                        before.get(name, "").splitlines(),
                        now.get(name, "").splitlines(),
                        f"{name} (before)",
                        f"{name} (now)",
                        n=1,
                        lineterm="",
                    ),
                    sep="\n",
                )
        path = KEPT / f"{group}.txt"
        if not now:
            path.unlink()
        elif before != now:
            path.write_text(sections(now))
    total = sum(map(len, groups.values()))
    print(f"{total} captures in {len(groups)} files, of which {changed} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
