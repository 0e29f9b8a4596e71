"""Makes one fact of a reading of Ray: who is who by titles, what is pending by the status, who ended how by the lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from diag.model import Payload, Record
from diag.model.observations import Observation, StackSample, ThreadStack
from diag.model.observations.ray import RayDeath, RayDemand, RayProcess, RaySeen
from diag.model.observations.waits import WaitsRead
from diag.sources import waits
from diag.sources.payload import guarded, integer, mapping, sequence, word
from diag.sources.ray.collect import SOURCE
from diag.sources.ray.logs import demands_in
from diag.sources.stacks import remote_stack

_MOST = 512
# ray 2.60 sets it anew for each task: "ray::Trainer.fit", "ray::Trainer" between two of an actor, "ray::score" of a function,
# "ray::IDLE" of none; a worker that begins still has its program's own. Some versions put () behind a method.
_TITLE = re.compile(r"ray::(?P<name>[^\s()]+)")
_NO_TASK = ("IDLE", "IDLE_SpillWorker", "IDLE_RestoreWorker")
# ray 2.60, monitor.log and `ray status`:
#    {'CPU': 2.0} * 3 (PACK): 1+ pending placement groups
#    {'judge': 1.0}: 1+ pending tasks/actors
_DEMAND = re.compile(
    r"^(?P<shape>\{[^{}]*\}.*?)(?: \((?P<strategy>[A-Z_]+)\))?: (?P<count>\d+)\+? pending (?P<what>placement groups?|tasks/actors)"
)
_BUNDLE = re.compile(r"(\{[^{}]*\})(?: \* (\d{1,4}))?")
# ray 2.60, the same: " 2.0/4.0 CPU (2.0 used of 4.0 reserved in placement groups)", " 0B/17.57GiB memory"
_TOTAL = re.compile(r"^ *(?P<used>[\d.]+)/(?P<all>[\d.]+) (?P<name>[\w:.-]+)", re.MULTILINE)
# ray 2.60, raylet.out and gcs_server.out, each after "[2026-11-27 18:39:23,581 I 16795 16795] (raylet) ":
#   node_manager.cc:3647: Received KillLocalActor RPC worker_id=32267b6bcee6c9f7d964 actor_id=162a7abc342b9dde
#   node_manager.cc:1050: Killing leased worker because its owner died. worker_id=3309bd79ce9304f8 owner_worker_id=...
#   node_manager.cc:621: Killing leased worker because its job finished. worker_id=3309bd79ce9304f8 job_id=01000000
#   gcs_actor_manager.cc:1233: Worker 8ad91e5e2cd0 on node 341d exits, type=NODE_OUT_OF_MEMORY, has creation_task_exception = 0 ...
#   gcs_actor_manager.cc:1515: Actor is failed on worker 8ad91e5e2cd0 at node 341d, need_reschedule = 1, death context type = ...
_ENDS = (
    ("killed", re.compile(r"Received KillLocalActor RPC worker_id=(?P<worker>[0-9a-f]{8,64})")),
    ("job_over", re.compile(r"Killing leased worker because its [^.]*\. worker_id=(?P<worker>[0-9a-f]{8,64})")),
    ("memory", re.compile(r"Worker (?P<worker>[0-9a-f]{8,64}) on node \S+ exits, type=NODE_OUT_OF_MEMORY")),
    ("crashed", re.compile(r"Worker (?P<worker>[0-9a-f]{8,64}) on node \S+ exits, type=SYSTEM_ERROR")),
    ("exit_actor", re.compile(r"Worker (?P<worker>[0-9a-f]{8,64}) on node \S+ exits, type=INTENDED_USER_EXIT")),
)  # fmt: skip
_AGAIN = re.compile(
    r"Actor is failed on worker (?P<worker>[0-9a-f]{8,64}) at .*? need_reschedule = (?P<again>[01])"
)


@guarded(SOURCE)
def parse(record: Record) -> Iterator[Observation]:
    payload = record.payload
    processes = [
        _process(pid, kind, title, record)
        for kind in ("driver", "worker", "service", "daemon")
        for pid, title in _titles(payload, f"{kind}s")
    ]
    status = word(payload.get("status"), 16_384)
    yield RaySeen(
        None,
        word(payload["session"]),
        tuple(processes),
        tuple(_demands(status)),
        tuple(
            (found["name"], float(found["used"]), float(found["all"])) for found in _TOTAL.finditer(status)
        )[:64],
        tuple(_deaths(payload)),
    )


def _titles(payload: Payload, key: str) -> list[tuple[int, str]]:
    return [(int(pid), word(title)) for pid, title in list(mapping(payload.get(key)).items())[:_MOST]]


def _process(pid: int, kind: str, title: str, record: Record) -> RayProcess:
    payload, origin = record.payload, (None, record.host, record.read_at)
    name, method = _task(title) if kind == "worker" else ("", "")
    threads: tuple[ThreadStack, ...] = ()
    found: WaitsRead | None = None
    if (stack := mapping(payload.get("stacks")).get(str(pid))) is not None:
        made = remote_stack.parse(Record(remote_stack.SOURCE, stack, *origin))
        threads = next((one.threads for one in made if isinstance(one, StackSample)), ())
    if (wait := mapping(payload.get("waits")).get(str(pid))) is not None:
        made = waits.parse(Record(waits.SOURCE, wait, *origin))
        found = next((one for one in made if isinstance(one, WaitsRead)), None)
    return RayProcess(pid, kind, title, name, method, threads, found)


def _task(title: str) -> tuple[str, str]:
    """
    >>> [_task(one) for one in ("ray::Trainer.fit", "ray::Trainer", "ray::IDLE", "/opt/venv/bin/python default_worker.py")]
    [('Trainer', 'fit'), ('Trainer', ''), ('', ''), ('', '')]
    """
    found = _TITLE.match(title)
    if found is None or found["name"] in _NO_TASK:
        return "", ""
    name, dot, method = found["name"].rpartition(".")
    return (name, method) if dot else (method, "")


def _demands(status: str) -> Iterator[RayDemand]:
    """
    >>> [*_demands("Pending Demands:\\n {'CPU': 2.0} * 2 (PACK): 1+ pending placement groups")]
    [RayDemand(group=True, shape=((('CPU', 2.0),), (('CPU', 2.0),)), strategy='PACK', count=1)]
    """
    for line in demands_in(status):
        if (found := _DEMAND.match(line)) is None:
            continue
        shape = []
        for one, times in _BUNDLE.findall(found["shape"]):
            bundle = ast.literal_eval(one)
            needs = tuple((str(name), float(amount)) for name, amount in bundle.items())
            shape += [needs] * min(int(times or 1), 1024)
        yield RayDemand(
            found["what"].startswith("placement"), tuple(shape), found["strategy"] or "", int(found["count"])
        )


def _deaths(payload: Payload) -> Iterator[RayDeath]:
    """The first line that tells how: what follows is Ray's word for the same end."""
    pids = {word(name): int(pid) for pid, name in mapping(payload.get("ended")).items()}
    ends: dict[str, tuple[str, str]] = {}
    again: dict[str, bool] = {}
    for line in (word(one, 1000) for one in sequence(payload.get("lines"))):
        if (found := _AGAIN.search(line)) is not None:
            again[found["worker"]] = found["again"] == "1"
        for how, pattern in _ENDS:
            if (found := pattern.search(line)) is not None and found["worker"] not in ends:
                ends[found["worker"]] = how, line
    for worker, (how, line) in ends.items():
        if worker in pids:
            yield RayDeath(integer(pids[worker]), how, again.get(worker), line[:300])
