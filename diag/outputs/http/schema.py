"""The shapes of the HTTP answers for /docs and OpenAPI. They describe; the answers are not sent through them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class Evidence(BaseModel):
    """One reading that a finding rests on."""

    rank: int | None
    at: float = Field(description="seconds since the epoch")
    kind: str = Field(description="the source that read it")
    excerpt: str = Field(description="raw text, trimmed")


class Finding(BaseModel):
    """What is wrong, who caused it and what to do."""

    id: str
    subject: str
    klass: str = Field(alias="class", description="of a hang: what kind")
    severity: Literal["info", "warning", "critical"] = Field(description="info, warning or critical")
    confidence: Literal["low", "medium", "high"] = Field(description="low, medium or high")
    ranks: list[int] = Field(description="the culprits, never the victims")
    waiting_ranks: list[int]
    since: float = Field(description="when it began")
    summary: str
    cause: str
    advice: str = Field(description="without commands that need a living process, once there is none")
    evidence: list[Evidence]
    opened_at: float | None = Field(None, description="when diag said so first")
    resolved_at: float | None = Field(None, description="when it was over; not there while it is open")
    moved_again: list[int] = Field(
        [], description="culprits of a hang that is over, of those that were seen to move"
    )
    open_at_end: bool = Field(False, description="a hang that the job ended in")


class NotChecked(BaseModel):
    """What could not be looked at, and what would let us look."""

    what: str
    reason: str
    remedy: str


class Job(BaseModel):
    state: str = Field(
        description="starting, running, checkpointing, hung, dead, finished, failed or unknown"
    )
    phase: str
    world_size: int
    ranks_seen: int
    iteration: int | None
    total_iterations: int | None
    returncode: int | None
    ended_at: float | None = None
    at: float = Field(description="time of the last reading")
    steps: dict[str, Any] | None = Field(
        None, description="how long steps take; null before the first was measured"
    )
    save: dict[str, Any] | None = Field(
        None, description="the checkpoint that is being written; null while none is"
    )


class Report(BaseModel):
    """diag.report/1"""

    schema_: Literal["diag.report/1"] = Field(alias="schema")
    sentence: str = Field(
        "",
        description="the job in one sentence, as all faces say it; times of day are of this machine's zone",
    )
    sentence_times: dict[str, float] = Field({}, description="the moments that those times of day are")
    job: Job
    findings: list[Finding] = Field(
        description="the open ones; of a job that has ended, and of evidence on disk, also `past`"
    )
    past: list[Finding] = Field([], description="those that are over, the latest first; at most 100")
    past_left_out: int = Field(0, description="how many more are over")
    not_checked: list[NotChecked]
    next_command: str = Field("", description="what to type next; empty where nothing was found")
    next_reason: str = ""


class Frame(BaseModel):
    function: str
    file: str
    line: int
    text: str = Field(description="the frame as people write it")


class Exit(BaseModel):
    code: int | None
    signal: int | None
    at: float | None
    how: str = Field(description="who read it")
    text: str


class Rank(BaseModel):
    """A rank as last seen; null is for what nobody could read."""

    rank: int
    local_rank: int
    node_rank: int
    host: str
    pid: int
    state: str = Field(description="starting, running, checkpointing, stalled, hung, dead or finished")
    phase: str
    activity: str | None = Field(description="what the main thread does or waits for")
    context: str | None = Field(description="what the wait belongs to")
    where: Frame | None
    caller: Frame | None
    stack_at: float | None
    stack_unchanged_seconds: float | None
    seen_at: float
    progress_at: float | None
    seconds_since_progress: dict[str, float | None] = Field(description="per channel")
    process_state: str | None = Field(description="letter of /proc/PID/stat")
    cpu_ratio: float | None
    rss_bytes: int | None
    peak_rss_bytes: int | None
    threads: int | None
    open_files: int | None
    children: int | None
    limits: dict[str, Any] | None = Field(description='soft limits; a number or "unlimited"')
    time_shares: dict[str, float] | None = Field(
        description="parts of a step in which it was found; `samples` is their number"
    )
    rdma: dict[str, Any] | None = Field(
        description="RDMA devices seen and held open, libraries, container; null: not seen"
    )
    exit: Exit | None


class Ranks(BaseModel):
    """diag.ranks/1"""

    schema_: Literal["diag.ranks/1"] = Field(alias="schema")
    at: float
    ranks: list[Rank]


class Node(BaseModel):
    node_rank: int | None
    host: str
    url: str = Field(description="where its hub answers")
    run_id: str
    ranks: list[int]
    state: Literal["heard", "silent", "gone", "known"] = Field(
        description="gone: it said that it ends; known: from the job hub"
    )
    heard_seconds_ago: float | None
    round_trip_seconds: float | None
    skew_seconds: float | None = Field(
        description="how far its clock is ahead of the job hub's, where that can be told"
    )
    phase: str | None
    notes: list[str]


class Nodes(BaseModel):
    """diag.nodes/1"""

    schema_: Literal["diag.nodes/1"] = Field(alias="schema")
    nodes: list[Node]


class Thread(BaseModel):
    thread_id: int
    name: str
    main: bool
    active: bool | None
    owns_gil: bool | None
    frames: list[Frame] = Field(description="outermost first")


class Process(BaseModel):
    pid: int
    how: str
    at: float
    age_seconds: float
    activity: str | None
    idle: bool
    threads: list[Thread]


class Stacks(BaseModel):
    """diag.stacks/1"""

    schema_: Literal["diag.stacks/1"] = Field(alias="schema")
    rank: int
    host: str
    pid: int
    main: Process | None = Field(description="the rank's own process")
    children: list[Process] = Field(description="DataLoader workers and the like")
    reason: str | None = Field(description="why there is no stack, or none newer")


class SdGroup(BaseModel):
    targets: list[str] = Field(description="host:port of a hub")
    labels: dict[str, str] = Field(
        description="job_id and node for each of its series; names with __ are for relabelling only"
    )


class Health(BaseModel):
    status: Literal["ok"]


class Error(BaseModel):
    detail: str
    hint: str | None = Field(None, description="what to do, where there is something")


class Series(BaseModel):
    """One value a moment; null where nothing was read. Of many members (GPUs, ranks) the lowest, the mean and
    the highest."""

    name: str
    unit: str
    values: list[float | None]
    rank: int | None = Field(None, description="of this rank's process")
    gpu: int | None = Field(None, description="of this GPU of the node")
    ranks: list[int] = Field([], description="whose GPU it is")
    low: list[float | None] = []
    high: list[float | None] = []
    members: int = Field(1, description="how many this is the mean of")


class PhaseSeen(BaseModel):
    phase: str
    at: float = Field(description="when it began")


class Timeline(BaseModel):
    """diag.timeline/1: `count` moments of `width_seconds` from `began` on; a longer run has longer moments."""

    began: float | None = Field(description="seconds since the epoch; null before the first reading")
    width_seconds: float
    count: int
    phases: list[PhaseSeen]
    series: list[Series]
    limits: dict[str, float] = Field(description="by name of a series: what it may not exceed")


class State(BaseModel):
    """diag.state/1: all that the page and `diag top` show."""

    now: dict[str, float] = Field(description="`at`: the told time of all that is said here")
    head: dict[str, Any] = Field(
        description="run_id, version, recorded (where the evidence is on disk, or empty), command, host"
    )
    report: dict[str, Any] = Field(description="diag.report/1 as of /findings, without `job.at`")
    ranks: list[dict[str, Any]] = Field(description="rows as of /ranks, with the rank's GPU and without ages")
    stacks: list[dict[str, Any]] = Field(
        description="merged stacks: classes of ranks that stand at the same place"
    )
    timeline: Timeline
    nodes: list[dict[str, Any]] = Field(description="as of /nodes")


class Explained(BaseModel):
    id: str
    lang: Literal["en", "zh"]
    sections: dict[str, str] = Field(description="text by heading")


class Dump(BaseModel):
    """diag.dump/1: evidence of every rank. What it has beside the report depends on what could be read."""

    schema_: Literal["diag.dump/1"] = Field(alias="schema")
    report: Report | None = Field(None, description="of this node's job; not with scope=node")
    screen: str | None = Field(None, description="the same as text, where `columns` was given")


class Told(BaseModel):
    """What a node is told for its digest."""

    hub: str = Field(description="the run id of the job hub")
    host: str
    every: float = Field(description="seconds until the next digest")
    over: bool = Field(description="every node's command has ended")
    want: bool = Field(description="frames are missing: send all of them again")
    detail: int = Field(description="1: send stacks too")
    version: int
    roster_version: int
    roster: list[dict[str, Any]] | None = None
    verdict: dict[str, Any]


# --- what is no model
# ------------------------------------------------------------------------------------------

# As `detail`, not FastAPI's list of errors.
REFUSED: dict[int | str, dict[str, Any]] = {422: {"model": Error, "description": "Not understood"}}
DRAWINGS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A flame graph",
        "content": {
            "image/svg+xml": {},
            "application/json": {},
            "text/plain": {},
        },
    }
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "A stream without an end", "content": {"text/event-stream": {}}}
}
METRICS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Metrics",
        "content": {
            "text/plain": {},
            "application/openmetrics-text": {},
        },
    }
}
_NODE_OF_DIGEST = {
    "type": "object",
    "required": ["run_id", "host", "nodes", "world_size", "every_seconds"],
    "properties": {
        "run_id": {"type": "string"},
        "host": {"type": "string"},
        "nodes": {"type": "integer", "minimum": 1, "maximum": 1 << 20},
        "world_size": {"type": "integer", "minimum": 0, "maximum": 1 << 20},
        "node_rank": {"type": ["integer", "null"]},
        "every_seconds": {"type": "number", "minimum": 0, "maximum": 600},
        "returncode": {"type": ["integer", "null"]},
    },
}
_RANK_OF_DIGEST = {
    "type": "object",
    "description": "state, stack and GPU of one rank, with its `placement`",
    "required": ["placement"],
}
_DIGEST = {
    "type": "object",
    "title": "diag.digest/1",
    "required": ["schema", "node", "ranks", "frames", "wall", "port"],
    "properties": {
        "schema": {"const": "diag.digest/1"},
        "node": _NODE_OF_DIGEST,
        "ranks": {"type": "array", "items": _RANK_OF_DIGEST},
        "frames": {"type": "object", "description": "stacks by key, each once"},
        "wall": {"type": "number"},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    },
}
DIGEST_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _DIGEST}}}
}
