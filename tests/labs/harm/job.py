"""A job whose output and exit code are known beforehand: ranks that print numbered lines. Standard library
only.

`python job.py RESULTS RANKS SECONDS CODE [word ...]`: each rank prints numbered lines and writes how it ended to RESULTS; the job
ends with CODE. Words:
burst MB        rank 0 prints so many MB at once in the middle
flood MB SECS   rank 0 prints so many MB a second for so long, in lines of 4,000 bytes, and says how long that took
churn           three attempts, one after the other
every SECS      between two lines of a rank (default 0.02)
light           ranks without Python's site module: hundreds of them
files DIR       each rank prints into DIR/rank.N.log, as torchrun --log-dir has it
node I N        this is node I of N
hup             launcher and ranks note SIGHUP and go on
reuse           one more rank ends when RESULTS/swap appears, and a process that is no rank gets its pid
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

LINE_SECONDS = 0.02
_BURST_LINES = (b"x" * 199 + b"\n") * 20  # 4,000 bytes: below what a pipe takes in one piece
FLOOD_LINE = b"y" * 3999 + b"\n"
_WORDS = {"burst": 1, "flood": 2, "every": 1, "files": 1, "node": 2}
_signals: list[int] = []


def options(words: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        found[word] = [rest.pop(0) for _ in range(_WORDS.get(word, 0))]
    return found


def write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def flood(mb_a_second: float, seconds: float) -> float:
    began = time.monotonic()
    piece = FLOOD_LINE * 16
    for index in range(int(mb_a_second * 1e6 * seconds / len(piece))):
        write_all(piece)
        ahead = index * len(piece) / (mb_a_second * 1e6) - (time.monotonic() - began)
        if ahead > 0:
            time.sleep(ahead)
    return time.monotonic() - began


def rank_main(results: str, rank: int, seconds: float, words: dict[str, list[str]], attempt: int) -> None:
    burst = int(words.get("burst", ["0"])[0]) if rank == 0 else 0
    pause = float(words.get("every", [str(LINE_SECONDS)])[0])
    began, count, longest, last = time.monotonic(), 0, 0.0, time.monotonic()
    burst_at = began + seconds / 2 if burst else None
    flooded = None
    while (now := time.monotonic()) - began < seconds:
        longest, last = max(longest, now - last), now
        # one call: ranks share the pipe
        os.write(1, b"rank %d attempt %d line %d\n" % (rank, attempt, count))
        count += 1
        if burst_at is not None and now >= burst_at:
            burst_at = None
            for _ in range(burst * 250):
                write_all(_BURST_LINES)
        if "flood" in words and rank == 0 and flooded is None and now - began > seconds / 4:
            flooded = flood(*map(float, words["flood"]))
            last = time.monotonic()
        time.sleep(pause)
    longest = max(longest, time.monotonic() - last)
    told = {
        "rank": rank,
        "attempt": attempt,
        "lines": count,
        "longest_gap": longest,
        "signals": _signals,
        "flooded": flooded,
        "at": began,
    }
    with open(f"{results}/.rank-{rank}-{attempt}", "w") as file:
        json.dump(told, file)
    os.rename(f"{results}/.rank-{rank}-{attempt}", f"{results}/rank-{rank}-{attempt}")  # noqa: PTH104 - pathlib costs a light rank


def swapped_main(results: str) -> None:
    """The rank whose pid another gets."""
    while not os.path.exists(f"{results}/swap"):  # noqa: PTH110
        time.sleep(LINE_SECONDS)


def note_hangups() -> None:
    signal.signal(signal.SIGHUP, lambda number, frame: _signals.append(number))


def main() -> int:
    import subprocess

    results, ranks, seconds, code = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    words = options(sys.argv[5:])
    node, nodes = map(int, words.get("node", ["0", "1"]))
    if "hup" in words:
        note_hangups()
    with open(f"{results}/began", "w"):
        pass
    again = [sys.executable, "-u", *(["-S"] if "light" in words else []), *sys.argv]

    def start(rank: int, attempt: int, **more: str) -> subprocess.Popen[bytes]:
        number = node * ranks + rank
        env = {
            **os.environ,
            "RANK": str(number),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks * nodes),
            "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(nodes),
            "IS_RANK": str(attempt),
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            **more,
        }
        with contextlib.ExitStack() as stack:
            out = (
                stack.enter_context(open(f"{words['files'][0]}/rank.{rank}.log", "ab"))
                if "files" in words
                else None
            )
            return subprocess.Popen(again, env=env, stdout=out)

    for attempt in range(3 if "churn" in words else 1):
        spare = start(ranks, attempt, IS_SWAPPED="1") if "reuse" in words else None
        children = [start(rank, attempt) for rank in range(ranks)]
        if spare is not None and not swap(spare, results, seconds):
            return 98
        codes = [child.wait() for child in children]
        if any(codes):
            code = 99  # a rank came to harm
            break
    if _signals:
        with open(f"{results}/launcher-signals", "w") as file:
            json.dump(_signals, file)
    with open(f"{results}/ended", "w") as file:
        file.write(str(code))
    if code < 0:
        os.kill(os.getpid(), -code)
        signal.pause()
    return code


def swap(spare: object, results: str, seconds: float) -> bool:
    """The rank ends, and its pid is given to one that is no rank. Whether that worked."""
    import subprocess
    from pathlib import Path

    assert isinstance(spare, subprocess.Popen)
    program = str(Path(__file__).with_name("stranger.py"))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if spare.wait() != 0:
        return False
    for _ in range(50):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(spare.pid - 1))
        stranger = subprocess.Popen(
            [sys.executable, "-S", program, str(max(0.5, seconds - 1.0)), f"{results}/stranger"],
            env=env,
        )
        if stranger.pid == spare.pid:
            break
        stranger.kill()
        stranger.wait()
    else:
        return False
    with open(f"{results}/swapped", "w") as file:
        file.write(str(stranger.pid))
    return stranger.wait() == 0


if __name__ == "__main__":
    if "IS_SWAPPED" in os.environ:
        swapped_main(sys.argv[1])
    elif "IS_RANK" in os.environ:
        told_words = options(sys.argv[5:])
        if "hup" in told_words:
            note_hangups()
        rank_main(
            sys.argv[1], int(os.environ["RANK"]), float(sys.argv[3]), told_words, int(os.environ["IS_RANK"])
        )
    else:
        sys.exit(main())
