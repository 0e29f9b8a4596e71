"""Why goals are missed, by the key of the row: what docs/benchmarks.md says of those that the newest run misses."""

from __future__ import annotations

__all__ = ["EXPLAINED"]

_WHOLE = ("a sidecar beside each rank is a Python of its own, so that one rank that hangs in the kernel holds up no other, and the "
          "hub carries FastAPI, pydantic and the rules. One process for all ranks would need a sixth of the memory; a node of "
          "eight ranks has a terabyte.")
_VERB = "needs the manual, or the settings; the modules that read them cost more than Python's own start."
_DEBUG = ("its answer comes from a server that is in the training process already, unmerged and unjudged; diag's time begins with "
          "the start of a Python process, and every rank is also asked for memory, limits, children and its Flight Recorder. "
          "Where a rank holds the GIL, see the row below it.")

EXPLAINED = {
    "P6": "a sample is a copy of memory that its owner writes to. One in some ten thousand of a main thread in full motion shows "
          "two successive moments in one stack, which no second reading can tell. A verdict needs the same stack several "
          "times, from a rank that stands still.",
    "P7 64 ranks": "each sidecar takes its own full look (stack, children, memory, limits), and on two cores 64 of them wait for each "
                   "other; the loop that diag is compared with reads stacks only.",
    "P7 1000 nodes": "the nodes are played on the two cores that the hub has as well, and their 8,000 ranks are judged anew for the "
                     "dump; gathering alone is in the rows above.",
    "P8 pyspy_dump": _DEBUG,
    "P8 stacks": _DEBUG,
    "P9": "128 threads of http.client, which share one core with reading the JSON: their CPU is twice that of asyncio. It is "
          "paid when a person asks for a dump, not while the job runs.",
    "P11 naive": "the loop has 50 patterns, diag more than 600. Both are slower than what a training job prints, by a hundred times.",
    "P11 rg": "ripgrep looks at blocks, on SIMD, and keeps nothing. diag keeps of each line its rank and the lines above it, in "
              "Python, and says which rule it was.",
    "P13": "the exposition goes through prometheus_client, as the format is theirs to define, and every value is read from the state "
           "anew. At a scrape each 15 s it is a fiftieth of a percent of a core.",
    "P13 idle": "the hub looks for ranks below the command, and at itself, a few times a second, as ranks may appear any moment.",
    "P14 help": "argparse alone is a third of it.",
    "P14 explain": _VERB,
    "nccl file": "`grep` counts lines; diag makes facts of them.",
    "replay speed": "a line that says something goes past every detector, some 40 us; one that says nothing costs half a microsecond. "
                    "In this log one in four is near a word of an error or holds a step's numbers.",
    "run delay": "settings are checked before the command starts, so that a wrong one is told and not ignored: pydantic's import is "
                 "most of it. It is paid once a job.",
    "run whole": "the hub starts while the command runs, and its last checks wait for it. It is paid once a job.",
    **{f"P5 P12, {ranks}": _WHOLE for ranks in ("1", "8", "2 torch")},
    **{f"hub memory, {ranks}": "FastAPI, pydantic and the compiled rules are most of it." for ranks in ("1", "8", "2 torch")},
    "hub memory idle": "FastAPI, pydantic and the compiled rules are most of it.",
}
