"""What commands cost: `diag dump --all-ranks`, starting `diag`, and the hook at the start of every Python of
the job."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from diag.launch.inject import environment
from tests.liverun import DIAG, LiveRun

from .machine import Ran, bench_env, ran
from .runs import shell_script
from .stats import difference, interval, judge
from .table import Row

__all__ = ["dump_rows", "hook_rows", "in_turns", "start_rows"]

_HELP_TIMES = 3.0  # `python -c pass`; performance.md P14
_HOOK_SECONDS = 0.005  # ours: a DataLoader worker or a rank must not start noticeably later


def dump_rows(
    run: LiveRun, pids: Sequence[int], times_each: int, goal: float, say: Callable[[str], None]
) -> list[Row]:
    """`diag dump` of a run that lives against a serial shell loop over its ranks, in turns."""
    say(f"diag dump --all-ranks of {len(pids)} ranks, {times_each} times")
    dump = [*DIAG, "dump", "--all-ranks"]
    loop = ["bash", "-c", shell_script(pids)]
    ours, theirs = in_turns([(dump, bench_env(DIAG_RUN_ROOT=str(run.root))), (loop, bench_env())], times_each)
    mine, peer = interval([one.wall for one in ours]), interval([one.wall for one in theirs])
    ratio = interval([a.wall / b.wall for a, b in zip(ours, theirs, strict=True)])
    return [
        Row(
            f"wall time of `diag dump --all-ranks`, {len(pids)} ranks, from command start",
            f"{1000 * mine.mid:.0f} ms [{1000 * mine.low:.0f}, {1000 * mine.high:.0f}]",
            f"shell loop of py-spy dump: {1000 * peer.mid:.0f} ms [{1000 * peer.low:.0f}, {1000 * peer.high:.0f}]",
            f"{ratio.mid:.2g} [{ratio.low:.2g}, {ratio.high:.2g}]",
            f"< {goal:g} x",
            judge(ratio, goal),
            {
                "diag": mine.mid,
                "peer": peer.mid,
                "ratio": ratio.mid,
                "diag_command_cpu": statistics.median(one.cpu for one in ours),
            },
            f"P7 {len(pids)} ranks",
        )
    ]


def start_rows(count: int, say: Callable[[str], None]) -> list[Row]:
    """Verbs that need no run: what a person waits for before anything is done."""
    env = bench_env()
    verbs = (["--help"], ["explain", "hang"])
    say(f"starting diag, {count} times each")
    *ours, plain = in_turns(
        [*(([*DIAG, *verb], env) for verb in verbs), ([sys.executable, "-c", "pass"], env)], count
    )
    peer, rows = statistics.median(one.cpu for one in plain), []
    for verb, runs in zip(verbs, ours, strict=True):
        mine = statistics.median(one.cpu for one in runs)
        ratio = interval([a.cpu / b.cpu for a, b in zip(runs, plain, strict=True)])
        rows.append(
            Row(
                f"CPU of `diag {' '.join(verb)}`",
                f"{1000 * mine:.1f} ms",
                f"`python -c pass`: {1000 * peer:.1f} ms",
                f"{ratio.mid:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
                f"< {_HELP_TIMES:.0f} x",
                judge(ratio, _HELP_TIMES),
                {"diag": mine, "peer": peer, "ratio": ratio.mid},
                f"P14 {verb[0].strip('-')}",
            )
        )
    return rows


def hook_rows(count: int, say: Callable[[str], None]) -> list[Row]:
    """CPU that the hook adds to `python -c pass`: in a rank, and in a process of the job that is none."""
    say(f"in-rank hook, {count} times")
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as folder:
        (Path(folder) / "stacks").mkdir()
        plain = bench_env()
        hooked = {**plain, **environment(Path(folder), 1, plain)}
        of_rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        command = [sys.executable, "-c", "pass"]
        base, rank, other = in_turns(
            [(command, plain), (command, {**hooked, **of_rank}), (command, hooked)], count
        )
    cpu = [one.cpu for one in base]
    peer = statistics.median(cpu)
    found = []
    for runs, what in ((rank, "a rank"), (other, "another Python process of the job")):
        more = difference([one.cpu for one in runs], cpu)
        found.append(
            Row(
                f"CPU that the hook adds to the start of {what}",
                f"{1000 * more.mid:+.2f} ms [{1000 * more.low:+.2f}, {1000 * more.high:+.2f}]",
                f"`python -c pass`: {1000 * peer:.1f} ms",
                f"{1 + more.mid / peer:.2f}",
                f"< {1000 * _HOOK_SECONDS:.0f} ms",
                judge(more, _HOOK_SECONDS),
                {"diag": more.mid, "peer": peer},
                f"hook of {what.split()[1]}",
            )
        )
    return found


def in_turns(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], count: int) -> list[list[Ran]]:
    """Each once to warm up, then in turns."""
    for command, env in commands:
        ran(command, env)
    found: list[list[Ran]] = [[] for _ in commands]
    for number in range(count):
        for i in range(len(commands)):
            which = (i + number) % len(commands)
            found[which].append(ran(*commands[which]))
    return found
