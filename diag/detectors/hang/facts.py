"""What the sentences and advice of the catalogue may name: facts of one verdict, as words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from diag.detectors.hang.rank_wait import WAITS, cause_of, classify_rank
from diag.detectors.hang.verdict import Verdict
from diag.knowledge.checkpoint_args import named_paths
from diag.knowledge.worker_flags import workers_flag
from diag.model import numbered
from diag.model.observations import StackSample
from diag.model.observations.waits import Party
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.state.wait_chain import Step
from diag.text.units import format_ranks

_MOST_GROUPS = 4  # of ranks that are listed with their places; of the rest, how many they are
_MOST_PIDS = 32
_COMMAND = 80


@dataclass(frozen=True, slots=True)
class Each:
    """Of each culprit a process; as `{child_each:from worker pid}`, " from worker pid 7, which is blocked in read (a.py:3)"."""

    words: Callable[[str], str]

    def __format__(self, how: str) -> str:
        return self.words(how)


@dataclass(frozen=True, slots=True)
class Facts:
    """Each property is a place in the texts of the catalogue, {peer}; {Ranks} is {ranks} at the start of a sentence.
    What is not known has words that are still true."""

    verdict: Verdict
    job: JobView

    def of(self, place: str) -> object:
        known = getattr(self, place[0].lower() + place[1:])
        return known[:1].upper() + known[1:] if place[0].isupper() else known

    # -- ranks

    @property
    def ranks(self) -> str:
        return format_ranks(self.verdict.culprits)

    @property
    def first(self) -> int | str:
        return self.verdict.culprits[0] if self.verdict.culprits else ""

    @property
    def victims(self) -> str:
        return format_ranks(self.verdict.waiting)

    @property
    def wait(self) -> str:
        return numbered("[waits|wait]", len(self.verdict.waiting))

    @property
    def anybody_waits(self) -> bool:
        """For a rank in its own code: in a call, as far as is seen. For one that is gone whoever is left waits,
        sooner or later."""
        if self.verdict.cause != "not_in_collective" or self.verdict.collectives is not None:
            return bool(self.verdict.waiting)
        return any(classify_rank(rank) in WAITS for rank in self._seen(self.verdict.waiting))

    @property
    def pids(self) -> str:
        return _pids(self._seen(self.verdict.culprits), _MOST_PIDS)

    @property
    def first_pids(self) -> str:
        return _pids(self._seen(self.verdict.culprits), _MOST_GROUPS)

    @property
    def hosts_have(self) -> str:
        hosts = sorted({rank.placement.host for rank in self._seen(self.verdict.culprits)} - {""})
        more = f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
        return numbered("[has|have] ", len(hosts) or 1) + (", ".join(hosts[:4]) + more or "the node")

    @property
    def exits(self) -> str:
        ways: dict[str, list[int]] = {}
        for number in self.verdict.culprits:
            rank = self.job.ranks.get(number)
            ways.setdefault("gone" if rank is None else _format_exit(rank), []).append(number)
        if len(ways) == 1:
            return f" ({next(iter(ways))})"
        return " (" + cut([f"{format_ranks(of)} {way}" for way, of in ways.items()], ways.values()) + ")"

    @property
    def place(self) -> str:
        """Where the culprits are; of a hang that blames nobody, where all are."""
        return place_of(self.verdict.culprits or self.verdict.waiting, self.job)

    # -- the child process to blame

    @property
    def child(self) -> int | str:
        return self.verdict.blamed_child or "PID"

    @property
    def children(self) -> str:
        return " ".join(map(str, list(self._children().values())[:_MOST_PIDS])) or "PID"

    @property
    def child_each(self) -> Each:
        return Each(self._each_child)

    def _children(self) -> dict[int, int]:
        """Of each culprit the child process that it waits for, where the verdict blames one."""
        if self.verdict.blamed_child is None or not self.verdict.culprits:
            return {}
        found = {self.verdict.culprits[0]: self.verdict.blamed_child}
        for rank in self._seen(self.verdict.culprits[1:]):
            cause, child = cause_of(rank, classify_rank(rank))
            if child is not None and cause == self.verdict.cause:
                found[rank.rank] = child
        return found

    def _each_child(self, how: str) -> str:
        """Of several: ": rank 1 from ..., rank 2 from ...,"."""
        parts = []
        children = self._children()
        for number, child in children.items():
            sample = self.job.ranks[number].child_stacks.get(child) if number in self.job.ranks else None
            place = _innermost(sample[1], self.job.run.cwd) if sample else ""
            lock = " in a lock" if self.verdict.cause == "child_waits_for_lock" else ""
            parts.append(f" {how} {child}" + (f", which is blocked{lock}{place}" if place or lock else ""))
        if len(self.verdict.culprits) == 1:
            return "".join(parts)
        parts = [f"rank {number}{text}" for number, text in zip(children, parts, strict=True)]
        return ": " + cut(parts, [[number] for number in children]) + "," if parts else ""

    # -- what the kernel says that they wait for

    @property
    def waiter_waits(self) -> str:
        """Whose wait cannot end by itself."""
        chain = self.verdict.chain
        if chain is None or len(chain.steps) == 1:
            return self.ranks + numbered(" [waits|wait]", len(self.verdict.culprits))
        if chain.last.process.pid == chain.steps[0].process.pid:
            return f"{_thread(chain.last)} waits"
        return f"{_process(chain.last)} waits"

    @property
    def thread(self) -> str:
        step, other = self._other()
        if step is not None:
            return _thread(step)
        return f"the thread with tid {other.tid}" if other is not None and other.tid else "another thread"

    @property
    def process(self) -> str:
        step, other = self._other()
        if step is not None:
            return _process(step)
        return "another process" if other is None else _named(other.pid, other.command)

    @property
    def pid(self) -> int | str:
        step, other = self._other()
        return step.process.pid if step is not None else other.pid if other is not None else "PID"

    @property
    def peer(self) -> str:
        return (self._last and self._last.wait.peer) or "the other side"

    @property
    def path(self) -> str:
        """Of what the rank itself waits for, else of what the last one does."""
        chain = self.verdict.chain
        paths = (chain.steps[0].wait.path, chain.last.wait.path) if chain is not None else ()
        return next(filter(None, paths), "the file shown")

    @property
    def mount(self) -> str:
        return (self._last and self._last.wait.mount) or "it"

    @property
    def fd(self) -> int | str:
        return self._last.wait.fd if self._last is not None and self._last.wait.fd >= 0 else "the one shown"

    @property
    def _last(self) -> Step | None:
        return self.verdict.chain.last if self.verdict.chain is not None else None

    def _other(self) -> tuple[Step | None, Party | None]:
        """Whom the advice names: the one that cannot go on; else whom the first waits for, even where what that one
        does may not be read."""
        chain = self.verdict.chain
        if chain is None:
            return None, None
        if chain.end == "dead_end":
            return chain.last, None
        if len(chain.steps) > 1:
            return chain.steps[1], None
        return None, next(iter(chain.steps[0].wait.others), None)

    @property
    def lock(self) -> str:
        """The kernel tells what Python's own stack does not show: a thread that waits for another one sleeps on a
        futex."""
        held = [
            rank.rank
            for rank in self._seen(self.verdict.culprits)
            if rank.tree and rank.tree.main.wchan.startswith("futex")
        ]
        if not held:
            return " (an event, a file, a service, another process)"
        return f": {format_ranks(held)} {numbered('[waits|wait]', len(held))} for a lock or a thread"

    # -- calls and GPUs

    @property
    def calls(self) -> str:
        """ ": ranks 0,2 call all_reduce [8], rank 1 calls broadcast [8] (default_pg 7)" of a mismatch."""
        found = self.verdict.collectives
        if found is None or not found.signatures:
            return ""
        parts = []
        for call in found.signatures[:4]:
            sizes = " ".join(str(list(size)) for size in call.sizes[:2])
            calls = numbered("[calls|call]", len(call.ranks))
            parts.append(f"{format_ranks(call.ranks)} {calls} {call.op} {sizes}".rstrip())
        place = f" ({found.front.desc or found.front.group} {found.front.seq})" if found.front else ""
        return ": " + ", ".join(parts) + place

    @property
    def calls_waited_in(self) -> str:
        found = self.verdict.collectives
        if found is None:
            return ""
        culprits = set(self.verdict.culprits)
        parts = [
            f"rank {rank} in {wait.op} {wait.seq} of {wait.desc or wait.group}"
            for rank, wait in sorted(found.waiting.items())
            if rank in culprits
        ]
        return " (" + ", ".join(parts[:4]) + ")" if parts else ""

    @property
    def xid(self) -> str:
        return self.verdict.cause.removeprefix("xid_")

    @property
    def gpus_spin(self) -> str:
        return numbered(f"[GPU|GPUs] of {self.victims} [spins|spin]", len(self.verdict.waiting))

    @property
    def so_victims(self) -> str:
        if not self.verdict.waiting:
            return ""
        whom = numbered("for [it|them]", len(self.verdict.culprits))
        return f"; {self.victims} {self.wait} {whom}, NCCL is not at fault"

    # -- the job's own command

    @property
    def no_workers(self) -> str:
        flag = workers_flag(self.job.run.words, self.job.log.versions)
        return f"{flag} 0" if flag else "num_workers=0"

    @property
    def output(self) -> str:
        return f"the output directory {self._output}" if self._output else "the output directory"

    @property
    def output_path(self) -> str:
        return f" {shlex.quote(self._output)}" if self._output else ""

    @property
    def _output(self) -> str:
        saves = [one.path for one in named_paths(self.job.run.words) if one.role == "save"]
        return saves[-1] if saves else ""

    def _seen(self, ranks: Sequence[int]) -> list[RankView]:
        return [self.job.ranks[rank] for rank in ranks if rank in self.job.ranks]


def place_of(ranks: Sequence[int], job: JobView) -> str:
    """ " in step (train.py:7)" where all are at one place; else ": rank 0 in step (train.py:7), rank 1 in load (data.py:3),"."""
    places: dict[str, list[int]] = {}
    for number in ranks:
        reading = job.ranks[number].reading if number in job.ranks else None
        frame = reading.where if reading is not None else None
        place = "" if frame is None else f" in {format_frame(frame, job.run.cwd)}"
        places.setdefault(place, []).append(number)
    if len(places) == 1:
        return next(iter(places))
    groups = sorted(places.items(), key=lambda item: (not item[0], -len(item[1])))
    told = [f"{format_ranks(of)}{place or ' not known where'}" for place, of in groups]
    return ": " + cut(told, [of for _, of in groups]) + ","


def cut(parts: Sequence[str], groups: Iterable[Sequence[int]]) -> str:
    """The first of these, and how many ranks the others are of."""
    left = sum(len(ranks) for ranks in list(groups)[_MOST_GROUPS:])
    return ", ".join(parts[:_MOST_GROUPS]) + (
        numbered(f" and {left} more [rank|ranks]", left) if left else ""
    )


def _pids(ranks: Sequence[RankView], most: int) -> str:
    return " ".join(str(rank.placement.pid) for rank in ranks[:most]) + (" ..." if len(ranks) > most else "")


def _format_exit(rank: RankView) -> str:
    if rank.exit is None:
        return "gone"
    if rank.exit.signal is not None:
        return f"killed by signal {rank.exit.signal}"
    return f"exit code {rank.exit.exit_code}" if rank.exit.exit_code is not None else "exit code unknown"


def _innermost(sample: StackSample, cwd: str) -> str:
    main = sample.main
    return "" if main is None or not main.frames else f" in {format_frame(main.frames[-1], cwd)}"


def _thread(step: Step) -> str:
    return "the main thread" if step.main else f"thread {step.thread.name} (tid {step.thread.tid})"


def _process(step: Step) -> str:
    return _named(step.process.pid, step.process.command)


def _named(pid: int, command: str) -> str:
    return f"process {pid} (`{command[:_COMMAND]}`)" if command else f"process {pid}"
