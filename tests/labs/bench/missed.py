"""Why goals are missed, by the key of the row: what docs/benchmarks.md says of those that the newest run
misses."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

_WHOLE = """a sidecar beside each rank is a Python of its own: a rank that hangs in the kernel holds up nobody else. The
hub carries FastAPI, pydantic and the rules. One small process for all ranks would need far less memory;
against the host memory of a GPU node neither counts."""
_HUB = """FastAPI, uvicorn and pydantic, which the bare app beside it has as well, are more than half of it; the rest is
the rules' RE2."""
_DEBUG = """its answer comes from a server inside the training processes, already started, unmerged and unjudged. diag's
time begins with the start of a Python process, and every rank is asked for memory, limits, children and its
Flight Recorder too. What both have to say where a rank holds the GIL is in the row of that name."""

_WHY = {
    "P1": """150 reads of a process' memory a sample: on the virtual machine of 32 cores a read costs several times what it
does on two plain cores, where this sample takes 0.74 ms, 1/28 of py-spy's (at a load of 15).""",
    "P2": "the same; on the two plain cores 4.8 times the C program.",
    "hub CPU, 8": """on the virtual machine of 32 cores, where system calls are dear, a little above the goal. On two plain cores
0.4 to 0.7 %.""",
    "P6": """a sample is a copy of memory that its owner writes to. One in some ten thousand of a main thread in full
motion shows two successive moments in one stack. A verdict needs the same stack several times, from a rank
that stands still.""",
    "P7 8 ranks": "the loop reads stacks only; on a busy machine diag's own sidecars wait for a core.",
    "P7 64 ranks": """each sidecar takes its own full look (stack, children, memory, limits), and on two cores 64 of
them wait for each other; the loop reads stacks only.""",
    "P7 1000 nodes": """the nodes are played on the two cores that the hub has, and their 8,000 ranks are judged
anew for the dump. Gathering alone is in the rows above it.""",
    "P8 pyspy_dump": _DEBUG,
    "P8 stacks": _DEBUG,
    "P9": """128 threads of http.client cost more CPU than one loop of asyncio. It is paid when a person asks for a dump,
not while the job runs.""",
    "P11 naive": "the loop has 50 patterns, diag more than 600. Both are far quicker than a training job prints.",
    "P11 rg": """ripgrep looks at blocks, by SIMD, and keeps nothing. diag keeps the rank of each line and the lines above it,
in Python, and says which rule it was.""",
    "P13": """the exposition goes through prometheus_client, and every value is read from the state anew. At a scrape each
15 s it is some hundredth of a percent of a core.""",
    "P13 idle": "the hub looks for ranks below the command several times a second, as they may appear any moment.",
    "P14 help": "Python's own start and argparse are most of it.",
    "P14 explain": "the advice by cause of a hang is in its catalogue, so its modules are loaded.",
    "nccl file": "`grep` counts lines; diag makes facts of them.",
    "replay speed": """a line that says something goes past every detector, some tens of microseconds; in this log many
do: a step's numbers, and lines near a word of an error.""",
    "run delay": """settings are checked before the command starts, so that a wrong one is told and not ignored: the import of
pydantic is most of it. It is paid once a job.""",
    "run whole": "the hub starts beside the command, and its last checks wait for it. It is paid once a job.",
    "first stack": """imports of the hub, of its server and of the sidecar come one after another, and a busy
machine stretches them.""",
    "suspicion, 8": "the hub judges each second while a hang stands.",
    "hub memory idle": _HUB,
    **{f"{what}, {ranks}": _WHOLE for what in ("P5 P12", "PSS", "asleep CPU") for ranks in (1, 8)},
    **{f"hub memory, {ranks}": _HUB for ranks in (1, 8)},
}
EXPLAINED = {key: " ".join(text.split()) for key, text in _WHY.items()}
