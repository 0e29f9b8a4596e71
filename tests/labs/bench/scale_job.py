"""One verdict over very many synthetic ranks, in a process of its own: `python -m tests.labs.bench.scale_job SIZE
KIND`.

KIND is absent (one rank waits for its data), mismatch (one calls another collective) or half (half of them
do). Prints JSON: CPU seconds of each part, the whole process's peak of memory, and what was found.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from diag.detectors.hang import HangDetector
from diag.model.observations import CollectiveEntry, CollectiveGroup, FlightRecorder, Iteration
from diag.outputs.terminal.text import classes_text
from diag.outputs.view.classes import stack_classes
from diag.state.stack_digest import merge, picture
from tests.facts import ALL_REDUCE, DATA, Story, pid_of, stack, tree

_WIDTH = 8
_CALLS = 33  # of each of three groups


def entry(group: str, seq: int, op: str = "all_reduce", *, pending: bool = False) -> CollectiveEntry:
    state = "scheduled" if pending else "completed"
    sizes, dtypes = ((4096, 7168),), ("Float",)
    made = (op, sizes, sizes, dtypes, state, not pending, pending, seq, seq * 0.1)
    return CollectiveEntry("nccl", group, group, seq, seq, False, *made)


class Recorders:
    """Readings of all ranks: the world, tensor groups of eight, data groups across them."""

    def __init__(self, size: int, culprit: int, kind: str) -> None:
        world = tuple(range(size))
        self.tensor = [tuple(range(first, first + _WIDTH)) for first in range(0, size, _WIDTH)]
        self.data = [tuple(range(first, size, _WIDTH)) for first in range(_WIDTH)]
        self.world, self.culprit, self.kind = world, culprit, kind

    def reading(self, rank: int, at: float) -> FlightRecorder:
        groups = {"world": self.world, "tp": self.tensor[rank // _WIDTH], "dp": self.data[rank % _WIDTH]}
        entries = [entry(name, seq) for name in groups for seq in range(1, _CALLS + 1)]
        if rank != self.culprit or self.kind != "absent":
            other = rank == self.culprit if self.kind == "mismatch" else self.kind == "half" and rank % 2 == 1
            entries.append(entry("world", _CALLS + 1, "broadcast" if other else "all_reduce", pending=True))
        known = tuple(CollectiveGroup("nccl", name, name, ranks, None) for name, ranks in groups.items())
        return FlightRecorder(rank, at, "2.10", ("nccl",), known, tuple(entries), pid_of(rank))


def main() -> int:
    size, kind = int(sys.argv[1]), sys.argv[2]
    culprit = size // 3
    detector = HangDetector()
    story = Story([], world=size)
    job = story.engine.job
    recorders = Recorders(size, culprit, kind)
    began = time.process_time()
    for iteration in range(1, 4):
        story.tell(Iteration(None, iteration, 100, f"iteration {iteration}"))
        story.wait(2.0)
    for look in range(16):  # 2 s apart
        for rank in range(size):
            story.tell(tree(rank, story.now))
            story.tell(stack(rank, story.now, DATA if rank == culprit and kind == "absent" else ALL_REDUCE))
        if look in (12, 15):
            for rank in range(size):
                detector.observe(story.now, recorders.reading(rank, story.now))
        story.wait(2.0)
    told = time.process_time()
    ranks = [rank for _, rank in sorted(job.ranks.items())]
    sent = [json.dumps(picture(ranks[first : first + _WIDTH])) for first in range(0, size, _WIDTH)]

    parts: dict[str, float] = {}
    at = time.process_time()

    def took(name: str) -> None:
        nonlocal at
        now = time.process_time()
        parts[name], at = now - at, now

    merged = merge(map(json.loads, sent))
    root = merged.tree()
    took("merge")
    findings = list(detector.check(story.now, job))
    took("verdict")
    text = classes_text(stack_classes(story.engine), 100)
    took("text")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert root.count == size, root.count
    (found,) = findings
    print(
        json.dumps(
            {
                "seconds": sum(parts.values()),
                "parts": parts,
                "told_seconds": told - began,
                "peak_bytes": peak,
                "class": found.klass,
                "ranks": found.ranks[:4],
                "culprits": len(found.ranks),
                "summary": found.summary[:300],
                "lines": len(text.splitlines()),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
