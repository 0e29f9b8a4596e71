"""What the sentences and advice of the catalogue may name: facts of one verdict, as words that are true also where
little is known."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from diag.detectors.hang.call_words import CALL_FACTS
from diag.detectors.hang.ended_words import ENDED_FACTS
from diag.detectors.hang.kernel_causes import reader_and_writer
from diag.detectors.hang.rank_wait import (
    WAITS,
    cause_of,
    child_cpu,
    child_switches,
    classify_rank,
)
from diag.detectors.hang.verdict import Verdict, format_who
from diag.detectors.hang.wait_text import format_chain, format_wait, thread_of
from diag.knowledge.checkpoint_args import named_paths
from diag.knowledge.flags import workers_flag
from diag.model import numbered
from diag.model.observations import Frame, StackSample
from diag.model.observations.waits import Party
from diag.state.own_code import own_line
from diag.state.rank_view import RankView
from diag.state.stack_activity import format_frame
from diag.state.view import JobView
from diag.state.wait_chain import Step
from diag.text.tables import fill, places
from diag.text.units import format_path, format_ranks, format_ratio

_MOST_GROUPS = 4  # of ranks that are listed with their places; of the rest, how many they are
_MOST_PIDS = 32
_COMMAND = 80
_BLOCKED = {"child_waits_for_lock": "blocked on a lock"}  # by cause, of a child that is to blame

Fact = Callable[[Verdict, JobView], "str | Each"]


@dataclass(frozen=True, slots=True)
class Each:
    """Of each culprit a process; as `{child_each:from worker pid}`, " from worker pid 7, which is blocked in read (a.py:3)"."""

    verdict: Verdict
    job: JobView

    def __format__(self, how: str) -> str:
        """Of several: ": rank 1 from ..., rank 2 from ...,"."""
        if self.verdict.klass == "data_loading":
            how = how.replace("its child process", "its DataLoader worker pid")
        parts = []
        children = _children(self.verdict, self.job)
        if not children:
            return place_of(self.verdict.culprits, self.job)
        for number, child in children.items():
            rank = self.job.ranks.get(number)
            sample = rank.sample(child) if rank is not None else None
            place = _innermost(sample, self.job.run.cwd) if sample else ""
            does = _BLOCKED.get(self.verdict.cause, "blocked")
            if self.verdict.is_of("child_computes"):
                cpu = child_cpu(rank, child) if rank is not None else None
                does = "busy" + (f" at {format_ratio(cpu)} CPU" if cpu is not None else "")
            if self.verdict.cause == "dataloader_worker_slow" and rank is not None:
                often = child_switches(rank, child)
                does = f"awake {often:.0f} times a second" if often else "not blocked"
            shown = place or does != "blocked"
            parts.append(f" {how} {child}" + (f", which is {does}{place}" if shown else ""))
        if len(self.verdict.culprits) == 1:
            return "".join(f"{text}," if ", inside " in text else text for text in parts)
        parts = [f"rank {number}{text}" for number, text in zip(children, parts, strict=True)]
        return ": " + cut(parts, [[number] for number in children]) + "," if parts else ""


def filled(text: str, verdict: Verdict, job: JobView) -> str:
    """A text of the catalogue: one or several, and its places. {Ranks} is {ranks} at the start of a sentence."""
    text = numbered(text, len(verdict.culprits))
    known = {place: FACTS[place[0].lower() + place[1:]](verdict, job) for place in places(text)}
    begins = {place: word for place, word in known.items() if place[0].isupper() and isinstance(word, str)}
    return fill(text, **{**known, **{place: word[:1].upper() + word[1:] for place, word in begins.items()}})


def anybody_waits(verdict: Verdict, job: JobView) -> bool:
    """For a rank in its own code: in a call, as far as is seen. For one that is gone whoever is left waits,
    sooner or later."""
    if not verdict.is_of("outside") or verdict.collectives is not None:
        return bool(verdict.waiting)
    return any(classify_rank(rank) in WAITS for rank in job.ranks.known(verdict.waiting))


# --- ranks and their processes


def place_of(ranks: Sequence[int], job: JobView) -> str:
    """ " in step (train.py:7)" where all are at one place; else ": rank 0 in step (train.py:7), rank 1 in load (data.py:3),".

    Of ranks at one line of their own, which are not in one call of it: " in step (train.py:7): rank 0 inside ...,".
    """
    found: dict[tuple[str, str], list[int]] = {}
    for number in ranks:
        found.setdefault(_place_of(job.ranks.get(number), job.run.cwd), []).append(number)
    if len(found) == 1:
        own, inside = next(iter(found))
        return _joined(own, inside) + ("," if inside else "")
    own = next(iter(found))[0] if len({own for own, _ in found}) == 1 else ""
    groups = sorted(found.items(), key=lambda item: (not item[0][0], -len(item[1])))
    parts = []
    for (place, inside), of in groups:
        words = inside or " at the line itself" if own else _joined(place, inside) or " not known where"
        parts.append(format_ranks(of) + words)
    return f"{own}: {cut(parts, [of for _, of in groups])},"


def _place_of(rank: RankView | None, cwd: str) -> tuple[str, str]:
    if rank is None or rank.reading is None:
        return "", ""
    where, own = rank.reading.where, rank.reading.own
    if rank.reading.called_back is not None:
        where, own = rank.reading.called_back, None
    place, inside = _place(where, own, cwd)
    return (f"{place} of its {rank.thread_name}" if place and rank.thread else place), inside


def _place(where: Frame | None, own: Frame | None, cwd: str) -> tuple[str, str]:
    """ " in load (data.py:3)", the program's own line, and " inside SSLSocket.read (ssl.py:1103)" where that called a
    library."""
    if where is None or own is None:
        return (f" in {format_frame(where, cwd)}" if where is not None else ""), ""
    return f" in {format_frame(own, cwd)}", f" inside {format_frame(where, cwd)}"


def _joined(place: str, inside: str) -> str:
    return f"{place},{inside}" if inside else place


def cut(parts: Sequence[str], groups: Iterable[Sequence[int]]) -> str:
    """The first of these, and how many ranks the others are of."""
    left = sum(len(ranks) for ranks in list(groups)[_MOST_GROUPS:])
    return ", ".join(parts[:_MOST_GROUPS]) + (
        numbered(f" and {left} more [rank|ranks]", left) if left else ""
    )


def _pids(verdict: Verdict, job: JobView, most: int = _MOST_PIDS) -> str:
    ranks = job.ranks.known(verdict.culprits)
    return " ".join(str(rank.placement.pid) for rank in ranks[:most]) + (" ..." if len(ranks) > most else "")


def _at_cpu(verdict: Verdict, job: JobView) -> str:
    ratios = [
        rank.main_cpu_ratio for rank in job.ranks.known(verdict.culprits) if rank.main_cpu_ratio is not None
    ]
    return f" at {format_ratio(min(1.0, sum(ratios) / len(ratios)))} CPU" if ratios else ""


def _hosts_have(verdict: Verdict, job: JobView) -> str:
    hosts = sorted({rank.placement.host for rank in job.ranks.known(verdict.culprits)} - {""})
    more = f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    return numbered("[has|have] ", len(hosts) or 1) + (", ".join(hosts[:4]) + more or "the node")


def _exits(verdict: Verdict, job: JobView) -> str:
    ways: dict[str, list[int]] = {}
    for number in verdict.culprits:
        rank = job.ranks.get(number)
        ways.setdefault("gone" if rank is None else _format_exit(rank), []).append(number)
    if len(ways) == 1:
        return f" ({next(iter(ways))})"
    return " (" + cut([f"{format_ranks(of)} {way}" for way, of in ways.items()], ways.values()) + ")"


def _format_exit(rank: RankView) -> str:
    if rank.exit is None:
        return "gone"
    if rank.exit.signal is not None:
        return f"killed by signal {rank.exit.signal}"
    return f"exit code {rank.exit.exit_code}" if rank.exit.exit_code is not None else "exit code unknown"


def _children(verdict: Verdict, job: JobView) -> dict[int, int]:
    """Of each culprit the child process that it waits for, where the verdict blames one."""
    if verdict.blamed_child is None or not verdict.culprits:
        return {}
    found = {verdict.culprits[0]: verdict.blamed_child}
    for rank in job.ranks.known(verdict.culprits[1:]):
        cause, child = cause_of(rank, classify_rank(rank))
        if child is not None and cause == verdict.cause:
            found[rank.rank] = child
    return found


def _innermost(sample: StackSample, cwd: str) -> str:
    frames = sample.main.frames if sample.main is not None else ()
    last = len(frames) - 1
    return _joined(*_place(frames[last], own_line(frames, last), cwd)) if frames else ""


# --- what the kernel says that they wait for


def _waiter_waits(verdict: Verdict, job: JobView) -> str:
    """Whose wait cannot end by itself."""
    chain = verdict.chain
    child = verdict.blamed_child is not None
    if chain is None or (len(chain.steps) == 1 and not child):
        return format_who(verdict.culprits, "[waits|wait]")
    same = chain.last.process.pid == chain.steps[0].process.pid and not child
    return f"{thread_of(chain.last) if same else _process_of(chain.last)} waits"


def _sleeper_sleeps(verdict: Verdict, job: JobView) -> str:
    chain = verdict.chain
    if chain is None or chain.behind is None:
        return format_who(verdict.culprits, "[sleeps|sleep]")
    same = chain.last.process.pid == chain.behind.last.process.pid
    return f"{thread_of(chain.last) if same else _process_of(chain.last)} sleeps"


def _other(verdict: Verdict, job: JobView) -> Step | Party | None:
    """Whom the advice names: the one that cannot go on; else whom the first waits for, even where what that one
    does may not be read."""
    chain = verdict.chain
    if chain is None:
        return None
    if chain.end == "dead_end" or verdict.cause == "child_computes":
        return chain.last
    if len(chain.steps) == 1:
        return next(iter(chain.steps[0].wait.others), None)
    pids = [rank.placement.pid for rank in job.ranks.known(verdict.culprits)]
    first, second = chain.steps[:2]
    of_child = first.process.pid not in pids and second.process.pid in pids
    return first if of_child and first in chain.circle else second


def _thread(verdict: Verdict, job: JobView) -> str:
    other = _other(verdict, job)
    if isinstance(other, Step):
        return thread_of(other)
    return f"the thread with tid {other.tid}" if other is not None and other.tid else "another thread"


def _process(verdict: Verdict, job: JobView) -> str:
    other = _other(verdict, job)
    return "another process" if other is None else _process_of(other)


def _process_of(other: Step | Party) -> str:
    one = other.process if isinstance(other, Step) else other
    return f"process {one.pid} (`{one.command[:_COMMAND]}`)" if one.command else f"process {one.pid}"


def _above(verdict: Verdict, job: JobView) -> str:
    """Where the sentence says what the other one does: of a rank that has not appeared it says that alone."""
    other, chain = _other(verdict, job), verdict.chain
    if other is None or chain is None or not verdict.culprits or verdict.culprits[0] not in job.ranks:
        return ""
    pid = other.process.pid if isinstance(other, Step) else other.pid
    told = isinstance(other, Step) and f", which {format_wait(other)}" in format_chain(
        chain, "it", verdict.cause
    )
    return " (above)" if told or f"pid {pid} is in " in verdict.words else ""


def _pid(verdict: Verdict, job: JobView) -> str:
    other = _other(verdict, job)
    one = other.process if isinstance(other, Step) else other
    return "PID" if one is None else str(one.pid)


def _path(verdict: Verdict, job: JobView) -> str:
    """Of what the rank itself waits for, else of what the last one does."""
    steps = verdict.chain.steps if verdict.chain is not None else ()
    return next((step.wait.path for step in (*steps[:1], *steps[-1:]) if step.wait.path), "the file shown")


def _of_last(field: str, otherwise: str) -> Fact:
    def words(verdict: Verdict, job: JobView) -> str:
        value = getattr(verdict.chain.last.wait, field) if verdict.chain is not None else ""
        return otherwise if value in ("", -1) else str(value)

    return words


def _of_reason(name: str, otherwise: str) -> Fact:
    def words(verdict: Verdict, job: JobView) -> str:
        return otherwise if verdict.reason is None else verdict.reason.facts.get(name, otherwise)

    return words


def _of_circle(which: int, verb: str) -> Fact:
    """Of two processes one of which reads what the other has not written: the rank where its own process is that one."""

    def fact(verdict: Verdict, job: JobView) -> str:
        found = reader_and_writer(verdict.chain) if verdict.chain is not None else None
        pids = [rank.placement.pid for rank in job.ranks.known(verdict.culprits)]
        if found is None or found[which].process.pid in pids:
            return format_who(verdict.culprits, verb).strip()
        return f"{_process_of(found[which])} {numbered(verb, 1)}".strip()

    return fact


def _lone_process(verdict: Verdict, job: JobView) -> str:
    """Whose only thread waits for what only another could do."""
    if verdict.chain is None:
        return f"process {verdict.blamed_child}" if verdict.blamed_child else "a process"
    return _process_of(verdict.chain.last)


def _held_by(verdict: Verdict, job: JobView) -> str:
    """In its shutdown: what keeps the process from ending, where the kernel shows it."""
    steps = verdict.chain.steps if verdict.chain is not None else ()
    if len(steps) < 2 or steps[0].wait.kind not in ("join", "child"):
        return ""
    if steps[0].wait.kind == "child":
        return f", since {_process_of(steps[1])}, a process that it started, is waited for"
    judged = [rank.judged for rank in job.ranks.known(verdict.culprits[:1])]
    at_exit = any(
        one is not None and any(each.function == "_shutdown" for each in one.frames) for one in judged
    )
    return f", since {thread_of(steps[1])}{', a thread that is no daemon,' if at_exit else ''} is waited for"


def _of_tokenizers(verdict: Verdict, job: JobView) -> str:
    """Its pool of threads does not survive a fork: mentioned where it is loaded, or that is not known."""
    loaded = verdict.chain.last.wait.libraries if verdict.chain is not None else None
    for rank in job.ranks.known(verdict.culprits[:1]):
        sample = rank.sample(verdict.blamed_child or -1)
        main = sample.main if sample is not None else None
        if main is not None and main.frames and format_path(main.frames[-1].file).startswith("torch/"):
            return ""  # it waits in torch, whose threads are those of OpenMP
    setting = "TOKENIZERS_PARALLELISM=false"
    if loaded is None:
        return f" (With Hugging Face's tokenizers, {setting} helps.)"
    return f" It has loaded tokenizers, whose pool {setting} switches off." if "tokenizers" in loaded else ""


def _lock(verdict: Verdict, job: JobView) -> str:
    """The kernel tells what Python's own stack does not show: a thread that waits for another one sleeps on a
    futex."""
    seen = job.ranks.known(verdict.culprits)
    held = [rank.rank for rank in seen if rank.on_futex]
    if not held:
        return " (an event, a file, a service, another process)"
    return f": {format_who(held, '[waits|wait]')} for a lock or a thread"


# --- who waits, and the job's own command


def _so_victims(verdict: Verdict, job: JobView) -> str:
    if not verdict.waiting:
        return ""
    whom = numbered("for [it|them]", len(verdict.culprits))
    return f"; {format_who(verdict.waiting, '[waits|wait]')} {whom}, NCCL is not at fault"


def _waited(verdict: Verdict, job: JobView) -> str:
    """Whether those that wait are in one call, or each in one of its own."""
    found = verdict.collectives.waiting if verdict.collectives is not None else {}
    calls: set[object] = {
        (one.op, one.group, one.seq) for number in verdict.waiting if (one := found.get(number)) is not None
    }
    if not calls:
        readings = [rank.reading for rank in job.ranks.known(verdict.waiting)]
        calls = {one.where.function for one in readings if one is not None and one.where is not None}
    return numbered("[call|calls]", max(1, len(calls)))


def _wait(verdict: Verdict, job: JobView) -> str:
    return numbered("[waits|wait]", len(verdict.waiting))


def _not_moved(verdict: Verdict, job: JobView) -> str:
    """Where it was seen at each look; that it did nothing meanwhile is not known."""
    if place_of(verdict.culprits, job).startswith(" in "):
        return "been"
    return "been elsewhere," if verdict.busy else "not moved"


def _no_workers(verdict: Verdict, job: JobView) -> str:
    flag = workers_flag(job.run.words, job.log.versions)
    return f"{flag} 0" if flag else "num_workers=0"


def _output(job: JobView) -> str:
    return next((one.path for one in reversed(named_paths(job.run.words)) if one.role == "save"), "")


# Each place in the texts of the catalogue, such as {peer}.
FACTS: dict[str, Fact] = {
    **CALL_FACTS,
    **ENDED_FACTS,
    "ranks": lambda verdict, job: format_ranks(verdict.culprits),
    "first": lambda verdict, job: str(verdict.culprits[0]),
    "victims": lambda verdict, job: format_ranks(verdict.waiting),
    "wait": _wait,
    "waited": _waited,
    "so_victims": _so_victims,
    "place": lambda verdict, job: place_of(verdict.culprits, job),
    "pids": _pids,
    "at_cpu": _at_cpu,
    "not_moved": _not_moved,
    "first_pids": lambda verdict, job: _pids(verdict, job, _MOST_GROUPS),
    "hosts_have": _hosts_have,
    "exits": _exits,
    "child": lambda verdict, job: str(verdict.blamed_child or "PID"),
    "children": lambda verdict, job: " ".join(map(str, [*_children(verdict, job).values()][:_MOST_PIDS])) or "PID",
    "child_each": Each,
    "waiter_waits": _waiter_waits,
    "sleeper_sleeps": _sleeper_sleeps,
    "thread": _thread,
    "process": _process,
    "pid": _pid,
    "above": _above,
    "path": _path,
    "peer": _of_last("peer", "the other side"),
    "mount": _of_last("mount", "it"),
    "fd": _of_last("fd", "not known"),
    "lock": _lock,
    "of_tokenizers": _of_tokenizers,
    "lone_process": _lone_process,
    "reader_reads": _of_circle(0, "[reads|read]"),
    "writer": _of_circle(1, ""),
    "held_by": _held_by,
    "xid": lambda verdict, job: verdict.cause.removeprefix("xid_"),
    "gpus_spin": lambda verdict, job: numbered(
        f"[GPU|GPUs] of {format_ranks(verdict.waiting)} [spins|spin]", len(verdict.waiting)
    ),
    "repetition": _of_reason("repetition", "no repetition inside of a repetition"),
    "query": _of_reason("query", "see its plan (EXPLAIN)"),
    "apart": lambda verdict, job: f"`{verdict.apart}`" if verdict.apart else "a value",
    "no_workers": _no_workers,
    "output": lambda verdict, job: f"the output directory {_output(job)}".rstrip(),
    "output_path": lambda verdict, job: f" {shlex.quote(_output(job))}" if _output(job) else "",
}  # fmt: skip
