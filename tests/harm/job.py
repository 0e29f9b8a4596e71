"""A job whose output and exit code are known beforehand: ranks that print numbered lines. Standard library only.

`python job.py RESULTS RANKS SECONDS CODE [burst MB] [churn]`: each rank prints numbered lines and writes how it ended to RESULTS;
the job ends with CODE. burst: rank 0 prints so many MB at once in the middle. churn: three attempts, one after the other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LINE_SECONDS = 0.02
_BURST_LINES = (b"x" * 199 + b"\n") * 20  # 4,000 bytes: below what a pipe takes in one piece


def rank_main(results: Path, rank: int, seconds: float, burst: int, attempt: int) -> None:
    began, count, longest, last = time.monotonic(), 0, 0.0, time.monotonic()
    burst_at = began + seconds / 2 if burst and rank == 0 else None
    while (now := time.monotonic()) - began < seconds:
        longest, last = max(longest, now - last), now
        os.write(1, b"rank %d attempt %d line %d\n" % (rank, attempt, count))  # one call: ranks share the pipe
        count += 1
        if burst_at is not None and now >= burst_at:
            burst_at = None
            for _ in range(burst * 250):
                os.write(1, _BURST_LINES)
        time.sleep(LINE_SECONDS)
    told = {"rank": rank, "attempt": attempt, "lines": count, "longest_gap": longest, "signals": []}
    (results / f"rank-{rank}-{attempt}").write_text(json.dumps(told))


def main() -> int:
    results, ranks, code = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4])
    attempts = 3 if "churn" in sys.argv else 1
    for attempt in range(attempts):
        children = []
        for rank in range(ranks):
            env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "IS_RANK": str(attempt),
                   "TORCHELASTIC_RESTART_COUNT": str(attempt)}
            children.append(subprocess.Popen([sys.executable, "-u", *sys.argv], env=env))
        if any(child.wait() for child in children):
            return 99  # a rank came to harm
    (results / "ended").write_text(str(code))
    if code < 0:
        os.kill(os.getpid(), -code)
        signal.pause()
    return code


if __name__ == "__main__":
    if "IS_RANK" in os.environ:
        burst_mb = int(sys.argv[sys.argv.index("burst") + 1]) if "burst" in sys.argv else 0
        rank_main(Path(sys.argv[1]), int(os.environ["RANK"]), float(sys.argv[3]), burst_mb, int(os.environ["IS_RANK"]))
    else:
        sys.exit(main())
