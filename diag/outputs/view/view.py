"""What the outputs see of the hub, and the job state as JSON. Reads the engine and judges nothing.

Every function here that takes an engine expects its owner's lock to be held by the caller.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from diag.engine.engine import Engine
from diag.launch.service_discovery import Target
from diag.model import Placement, Severity
from diag.model.observations import Frame, LimitsSeen, StackSample
from diag.outputs.view.classes import format_exit, why_no_stack
from diag.outputs.view.network_view import picked, rdma_json
from diag.outputs.view.steps_view import shares_json
from diag.state.idle import is_idle_child
from diag.state.phases import BEFORE_TRAINING
from diag.state.rank_view import CHANNELS, RankView
from diag.state.stack_activity import Activity, format_frame, read_stack
from diag.state.stack_digest import living_children

RANK_STATES = ("starting", "running", "checkpointing", "stalled", "delaying", "hung", "dead", "finished")


# --- what a hub gives


@dataclass(slots=True)
class SamplerTime:
    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class AgentProcess:
    """What a process of diag itself costs."""

    cpu_seconds: float
    rss_bytes: int


@dataclass(slots=True)
class Counters:
    """What diag counts about itself; written by the hub under its lock. All but `processes` only ever grow.

    `processes` is keyed by (kind, rank): ("hub", None), ("sidecar", 3). `reason` of an error is of a closed
    set of words (timeout, denied, gone, ...), never a message: it becomes a label.
    """

    sampler_seconds: dict[str, SamplerTime] = field(default_factory=dict)
    sampler_errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    log_lines_total: int = 0
    log_lines_dropped_total: int = 0
    journal_bytes_total: int = 0
    records_total: int = 0
    processes: dict[tuple[str, int | None], AgentProcess] = field(default_factory=dict)

    def sampled(self, sampler: str, seconds: float) -> None:
        taken = self.sampler_seconds.setdefault(sampler, SamplerTime())
        taken.count += 1
        taken.seconds += seconds


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """This hub among those of the other nodes. `expected`, `heard` and `findings` (kind, severity) are known
    on the job hub only; `digests` are keyed by (direction, result), `digest_bytes` by direction."""

    is_job_hub: bool
    expected: int
    heard: int
    findings: tuple[tuple[str, str], ...]
    digests: Mapping[tuple[str, str], int]
    digest_bytes: Mapping[str, int]
    round_trip: float | None


@dataclass(frozen=True, slots=True)
class FlameWanted:
    """What is to be recorded of a rank. `form` is svg, speedscope or collapsed; `native` stops the rank at
    each sample. `by_owner`: who owns the run wants it, and waits for no other user's."""

    seconds: float = 10.0
    rate: int = 50
    form: str = "svg"
    children: bool = False
    native: bool = False
    by_owner: bool = True


class ClusterView(Protocol):
    """What the outputs need to know of the job's other nodes. A hub that has joined none answers as here. The
    hub's lock need not be held for any of these."""

    @property
    def takes_digests(self) -> bool:
        """This hub has joined others."""
        return False

    def take_digest(self, document: dict[str, Any], address: str) -> dict[str, Any] | None:
        """A digest of another node's hub, and the answer to it; None where this hub has not joined others."""
        return None

    def refuse_digest(self, address: str) -> None:
        """A sender at this address wanted to report and had not the token."""
        return None

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes of the job that are known, one row each."""
        return []

    def facts(self) -> ClusterFacts | None:
        """None where this hub has not joined others."""
        return None

    def other_ranks(self) -> list[dict[str, Any]]:
        """Rows as of `ranks_json` of all ranks of the job that other nodes may have, where this hub judges
        the whole job."""
        return []


class HubView(Protocol):
    """What the outputs need of the owner of an engine. `lock` is held while the engine is read or fed."""

    engine: Engine
    lock: threading.RLock
    run_id: str
    version: str
    recorded: str  # where the evidence is on disk; empty where the job is watched now
    started_at: float
    counters: Counters
    token: str | None
    bound_beyond_loopback: bool

    def targets(self) -> Sequence[Target]:
        """The hubs of the job that are known, this one first, for Prometheus. Called without the lock held;
        never waits."""
        ...

    async def flame(self, place: Placement, wanted: FlameWanted) -> bytes:
        """A flame graph of a living rank, recorded now; DiagError has the reason where there is none. Awaited without the
        lock held, and cancelled where no client waits for it any more."""
        ...

    @property
    def cluster(self) -> ClusterView: ...

    async def dump(self, deadline: float, *, native: bool = False, scope: str = "job") -> dict[str, Any]:
        """A bundle document, complete or explained within `deadline` seconds. Awaited on the server's own
        loop without the lock held."""
        ...


# --- JSON


# What moves a terminal's cursor or turns its text around, beyond the controls that JSON escapes anyway: DEL
# and C1, marks of direction, what has no width, line ends of Unicode, tags.
_UNSEEN = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def json_bytes(document: object) -> bytes:
    """JSON that any parser takes and any terminal shows: no NaN (null instead), and as escapes lone
    surrogates of odd log bytes and what would act on a terminal.

    >>> json_bytes({"loss": float("nan"), "text": "\\udc80 \\x9d \\u202e \u00fc"}).decode()
    '{"loss":null,"text":"\\\\udc80 \\\\u009d \\\\u202e \u00fc"}'
    """
    try:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(document), ensure_ascii=False, separators=(",", ":"))
    if not text.isascii() or "\x7f" in text:  # most answers have neither
        text = _UNSEEN.sub(_escaped, text)
    return text.encode("utf-8", "backslashreplace")


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


# What a finding makes of the state of the ranks that it names; those that wait for them are stalled.
STATE_OF_CULPRITS = {"hang": "hung", "held-up": "delaying"}


def states_of_findings(findings: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Of the ranks that a hang or a hold-up names, their state: of documents of findings that are open."""
    named = [one for one in findings if one["id"] in STATE_OF_CULPRITS and Severity(one["severity"]).counts]
    waiting = {rank: "stalled" for one in named for rank in one["waiting_ranks"]}
    return waiting | {rank: STATE_OF_CULPRITS[one["id"]] for one in named for rank in one["ranks"]}


def rank_states(engine: Engine) -> dict[int, str]:
    return states_of_findings(
        {"id": one.id, "severity": one.severity, "ranks": one.ranks, "waiting_ranks": one.waiting_ranks}
        for one in engine.active()
    )


def rank_state(engine: Engine, rank: RankView, named: Mapping[int, str]) -> str:
    """One of RANK_STATES. `named`: those of findings."""
    job = engine.job
    if rank.exit is not None:
        code = rank.exit.exit_code
        unknown = code is None and rank.exit.signal is None
        return "finished" if code == 0 or (unknown and job.returncode == 0) else "dead"
    if rank.rank in named:
        return named[rank.rank]
    if is_saving(engine, rank):
        return "checkpointing"
    early = job.phase in BEFORE_TRAINING and not job.phases.has_begun(engine.now)
    return "starting" if early else "running"


def is_saving(engine: Engine, rank: RankView) -> bool:
    reading = rank.reading
    stack_says = reading is not None and Activity.CHECKPOINT in (reading.activity, reading.context)
    return rank.alive and (stack_says or engine.job.phase == "ckpt_save")


def ranks_json(engine: Engine) -> list[dict[str, Any]]:
    """One object per rank. Numbers that could not be read are null."""
    job, now = engine.job, engine.now
    named = rank_states(engine)
    shares = shares_json(engine)
    rows = []
    for _, rank in sorted(job.ranks.items()):
        place, tree, reading = rank.placement, rank.tree, rank.reading
        moved = dict(rank.moved)
        if job.progress.log_moved_at is not None:
            moved["log"] = max(job.progress.log_moved_at, moved.get("log", 0.0))
        rows.append(
            {
                **picked(place, "rank", "local_rank", "node_rank", "host", "pid"),
                "state": rank_state(engine, rank, named),
                "phase": job.phases.shown(engine.now),
                "activity": reading.activity.value if reading else None,
                "context": reading.context.value if reading and reading.context else None,
                "where": _frame_json(reading.where, job.run.cwd) if reading else None,
                "caller": _frame_json(reading.caller, job.run.cwd) if reading else None,
                "own": _frame_json(reading.own, job.run.cwd) if reading else None,
                "stack_at": rank.stack_at or None,
                "stack_unchanged_seconds": rank.stack_at - rank.stack_since if rank.stack else None,
                "seen_at": heartbeat(rank),
                "progress_at": rank.last_moved() or None,
                "seconds_since_progress": {
                    channel: max(0.0, now - moved[channel]) if channel in moved else None
                    for channel in CHANNELS
                },
                "process_state": tree.main.state if tree and rank.alive else None,
                "cpu_ratio": rank.cpu_ratio,
                "rss_bytes": tree.main.rss_bytes if tree else None,
                "peak_rss_bytes": tree.peak_rss_bytes if tree else None,
                "threads": tree.main.threads if tree else None,
                "open_files": tree.open_files if tree else None,
                "children": len(tree.children) if tree else None,
                "limits": _limits_json(rank.limits),
                "rdma": rdma_json(rank.rdma),
                "time_shares": shares.get(place.rank),
                "exit": _exit_json(rank),
            }
        )
    return rows


def rows_of_job(own: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """This node's rows of `ranks_json` with those of other nodes, one a rank. This node knows its own best;
    but a rank that ended here and lives elsewhere was given to another node by a restart (torchrun numbers
    ranks anew)."""
    rows = {row["rank"]: row for row in own}
    for row in others:
        known = rows.get(row["rank"])
        if known is None or _was_moved(known, row):
            rows[row["rank"]] = row
    return sorted(rows.values(), key=lambda row: int(row["rank"]))


def _was_moved(known: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    is_another = (known["host"], known["pid"]) != (row["host"], row["pid"])
    return is_another and known["exit"] is not None and row["exit"] is None


def heartbeat(rank: RankView) -> float:
    """When anything was last heard of a rank."""
    return max(rank.found_at, rank.tree_at, rank.stack_at, rank.exited_at or 0.0)


def _frame_json(frame: Frame | None, cwd: str) -> dict[str, Any] | None:
    if frame is None:
        return None
    return {**picked(frame, "function", "file", "line"), "text": format_frame(frame, cwd)}


def _limits_json(limits: LimitsSeen | None) -> dict[str, Any] | None:
    if limits is None:
        return None
    soft = dict(limits.soft)
    names = {
        "Max locked memory": "memlock_bytes",
        "Max open files": "open_files",
        "Max processes": "processes",
    }
    return {
        key: "unlimited" if soft[name] is None else soft[name] for name, key in names.items() if name in soft
    }


def _exit_json(rank: RankView) -> dict[str, Any] | None:
    if rank.exit is None:
        return None
    code, signal = rank.exit.exit_code, rank.exit.signal
    text = format_exit(code, signal)
    return {"code": code, "signal": signal, "at": rank.exited_at, "how": rank.exit.how, "text": text}


def stacks_json(engine: Engine, number: int) -> dict[str, Any]:
    """All threads of a rank and of its children. KeyError when no such rank was seen."""
    rank = engine.job.ranks[number]
    return {
        "schema": "diag.stacks/1",
        **picked(rank.placement, "rank", "host", "pid"),
        "main": _sample_json(engine, rank, rank.stack_at, rank.stack) if rank.stack else None,
        "children": [_sample_json(engine, rank, at, sample) for at, sample in living_children(rank)],
        "reason": why_no_stack(engine, rank) or None,
    }


def _sample_json(engine: Engine, rank: RankView, at: float, sample: StackSample) -> dict[str, Any]:
    main = sample.main
    own = sample is rank.stack
    judged = rank.judged if own else main
    reading = rank.reading if own else read_stack(main) if main else None
    return {
        "pid": sample.pid,
        "how": sample.how,
        "at": at,
        "age_seconds": max(0.0, engine.now - at),
        "activity": reading.activity.value if reading else None,
        "idle": is_idle_child(rank, sample) if sample.parent_pid is not None else False,
        "threads": [
            {
                **picked(thread, "thread_id", "name", "active", "owns_gil"),
                "main": thread is main,
                "judged": thread is judged,
                "frames": [_frame_json(frame, engine.job.run.cwd) for frame in thread.frames],
            }
            for thread in sample.threads
        ],
    }
