"""`python -m tests.labs.gpu`: drills side by side on this machine's GPUs, and paired runs with and without diag,
as tables.

It needs what the job needs: ms-swift with megatron-core, and GPUs. Evidence of each run is kept in DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["main"]

_FIRST_PORT = 29600


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m tests.labs.gpu", description=__doc__)
    p.add_argument("--drills", metavar="NAME,...", help="default: all that the GPUs suffice for; '' for none")
    p.add_argument(
        "--gpus", type=int, required=True, help="of this machine; drills of fewer run side by side"
    )
    p.add_argument(
        "--overhead",
        type=int,
        default=0,
        metavar="STEPS",
        help="paired runs of so many steps on two GPUs each",
    )
    p.add_argument("--rounds", type=int, default=2, help="of paired runs (default 2)")
    p.add_argument(
        "--pairs",
        type=int,
        default=10,
        help="of blocks with diag on and off, in each run under diag (default 10)",
    )
    p.add_argument("--keep", type=Path, default=Path("build/gpu"), metavar="DIR")
    return p


class _Gpus:
    """The machine's GPUs: taken in blocks, given back."""

    def __init__(self, count: int) -> None:
        self._free, self._changed = set(range(count)), threading.Condition()

    def take(self, count: int) -> list[int]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            taken = sorted(self._free)[:count]
            self._free -= set(taken)
        return taken

    def give(self, gpus: Sequence[int]) -> None:
        with self._changed:
            self._free |= set(gpus)
            self._changed.notify_all()


def say(text: str) -> None:
    print(text, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    from .drills import DRILLS
    from .overhead import paired
    from .table import drills_table, overhead_table

    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and options.gpus > len(visible):
        most = len(visible)
        print(
            f"error: CUDA_VISIBLE_DEVICES has {most} of {options.gpus} GPUs\n\nhint: --gpus {most}",
            file=sys.stderr,
        )
        return 2
    names = None if options.drills is None else [name for name in options.drills.split(",") if name]
    unknown = set(names or ()) - {drill.name for drill in DRILLS}
    if unknown:
        known = ", ".join(drill.name for drill in DRILLS)
        print(f"error: no drill {', '.join(sorted(unknown))}\n\nhint: {known}", file=sys.stderr)
        return 2
    too_large = [drill for drill in DRILLS if drill.name in (names or ()) and drill.gpus > options.gpus]
    if too_large:
        needs = ", ".join(f"{drill.name} needs {drill.gpus} GPUs" for drill in too_large)
        print(f"error: {needs}\n\nhint: --gpus {max(drill.gpus for drill in too_large)}", file=sys.stderr)
        return 2
    if options.overhead and options.gpus < 2:
        print("error: --overhead runs on pairs of GPUs\n\nhint: --gpus 2", file=sys.stderr)
        return 2
    chosen = [
        drill for drill in DRILLS if drill.gpus <= options.gpus and (names is None or drill.name in names)
    ]
    chosen.sort(key=lambda drill: names.index(drill.name) if names else 0)
    options.keep.mkdir(parents=True, exist_ok=True)
    machine = _Gpus(options.gpus)
    rows = _drills(chosen, machine, options)
    if rows:
        say(drills_table(rows))
    if options.overhead:
        found = paired(options.gpus // 2, options.overhead, options.rounds, options.keep, say, options.pairs)
        (options.keep / "overhead.json").write_text(json.dumps(found, indent=1))
        say(overhead_table(found))
    return 0 if all(row["ok"] for row in rows) else 1


def _drills(chosen: Sequence[Any], machine: _Gpus, options: argparse.Namespace) -> list[dict[str, Any]]:
    from .drill import run_drill

    lock, rows = threading.Lock(), []

    def one(number: int, drill: Any) -> None:
        gpus = machine.take(drill.gpus)
        try:
            row = run_drill(drill, gpus, _FIRST_PORT + 7 * number, options.keep)
        finally:
            machine.give(gpus)
        with lock:
            rows.append(row)
            (options.keep / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            say(
                f"{drill.name}: {'ok' if row['ok'] else 'NOT OK'} {row['seconds']} s "
                f"{json.dumps(row.get('top') or row.get('said') or row.get('error'))}"[:700]
            )

    # Those of most GPUs first: they would wait for all others else.
    ordered = sorted(enumerate(chosen), key=lambda item: -item[1].gpus)
    with ThreadPoolExecutor(max_workers=max(1, options.gpus // 2)) as pool:
        for future in [pool.submit(one, number, drill) for number, drill in ordered]:
            future.result()
    return rows


if __name__ == "__main__":
    sys.exit(main())
