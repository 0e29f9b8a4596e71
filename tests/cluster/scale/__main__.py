"""`python -m tests.cluster.scale`: what a job hub of 16, 128 and 1024 nodes costs, as tables."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.scale.lab import Lab, Phase
from tests.cluster.scale.nodes import RANKS

__all__ = ["main", "measure"]


def measure(
    folder: Path, nodes: int, seconds: float, *, dump: bool = True, takeover: bool = True
) -> tuple[list[Phase], dict[str, object]]:
    lab = Lab(folder, nodes)
    phases: list[Phase] = []
    told: dict[str, object] = {}

    def note(phase: Phase) -> None:
        phases.append(phase)
        print(f"  {phase}", file=sys.stderr, flush=True)

    try:
        lab.wait(lambda: lab.joined(2), 60.0, "the second hub joins")
        lab.play()
        told["all_heard_seconds"] = lab.wait(
            lambda: lab.say("stats")["reached"] >= nodes, 120.0, "every node was answered"
        )
        note(lab.phase("start"))
        time.sleep(max(10.0, seconds / 3))  # the rhythm settles
        note(lab.phase("settling"))
        time.sleep(seconds)
        note(lab.phase("healthy"))
        began = lab.say("hang")
        lab.wait(lambda: lab.say("stats")["hang"], 240.0, "the hang is told")
        said = lab.say("stats")
        note(lab.phase("hang until verdict"))
        told["last_moved_to_verdict"] = said["hang_seen_at"] - said["last_moved"]
        told["first_verdict"] = said["hang"]
        time.sleep(seconds)
        note(lab.phase("hang after"))
        told["verdict"] = lab.say("stats")["hang"]
        assert began
        if dump:
            cpu, at = lab.cpu(), time.monotonic()
            document, size = lab.get("/dump?deadline=10", 60.0)
            told |= {
                "dump_seconds": time.monotonic() - at,
                "dump_cpu": lab.cpu() - cpu,
                "dump_bytes": size,
                "dump_ranks": len(document["ranks"]),
                "dump_missing": len(document["missing"]),
                "dump_steps": {
                    row["probe"]: row["seconds"] for row in document["probes"] if row["rank"] is None
                },
            }
            hangs = [one for one in document["report"]["findings"] if one["id"] in ("hang", "held-up")]
            told["dump_hangs"] = [(one["ranks"], len(one["waiting_ranks"])) for one in hangs]
            note(lab.phase("dump"))
            document, _ = lab.get("/dump?deadline=10", 60.0, hub=1)
            told |= {
                "dump_of_another_ranks": len(document["ranks"]),
                "dump_of_another_missing": len(document["missing"]),
            }
        if takeover:
            before = set(lab.say("stats")["heard_from"])
            lab.hubs[0].end()

            def taken() -> bool:
                heard = lab.say("stats")["heard_from"]
                return not before & set(heard) and sum(heard.values()) >= nodes

            lab.begin(1)
            told["takeover_seconds"] = lab.wait(taken, 240.0, "the second hub has all nodes")
            note(lab.phase("takeover", 1))
            time.sleep(seconds / 2)
            note(lab.phase("after takeover", 1))
        told["counts"] = lab.say("stats")["counts"]
    finally:
        lab.close()
    return phases, told


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, action="append", help="may be repeated (default: 16, 128, 1024)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--no-takeover", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder that is left behind")
    options = parser.parse_args(argv)
    for nodes in options.nodes or (16, 128, 1024):
        with tempfile.TemporaryDirectory() as folder:
            home = options.keep or Path(folder)
            phases, told = measure(home, nodes, options.seconds, takeover=not options.no_takeover)
        print(f"\n{nodes} nodes, {nodes * RANKS} ranks\n")
        print(
            "| phase | s | share of a core | RSS MB | posts/s | failed | B/rank/s up | down | trip median ms | max s |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for one in phases:
            print(
                f"| {one.name} | {one.seconds:.0f} | {one.core:.1%} | {one.rss / 1e6:.0f} | {one.posts / one.seconds:.1f} "
                f"| {one.failed} | {one.up:.1f} | {one.down:.1f} | {one.trip_median * 1e3:.0f} | {one.trip_max:.2f} |"
            )
        for name, value in told.items():
            print(f"- {name}: {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
