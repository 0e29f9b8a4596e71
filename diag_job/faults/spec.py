"""The faults by name, and reading `NAME[:key=value,...]`. No fault is done here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_AT_STEP: Mapping[str, float] = {"rank": 1, "step": 0}
FOREVER = 0.0


class FaultError(ValueError):
    """A fault that was asked for and cannot be given: unknown, misspelt, or impossible on this machine."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One fault that can be asked for; `keys` are what it understands, with their defaults."""

    name: str
    summary: str
    keys: Mapping[str, float] = field(default_factory=lambda: _AT_STEP)


def _kind(name: str, summary: str, **keys: float) -> Kind:
    return Kind(name, summary, {**_AT_STEP, **keys})


KINDS: tuple[Kind, ...] = (
    _kind("data-hang", "a DataLoader worker reads a FIFO that nobody writes to"),
    _kind("data-worker-killed", "a DataLoader worker kills itself with SIGKILL"),
    _kind("lock-deadlock", "the main thread and another take two locks in opposite order"),
    _kind("gil-held", "the main thread sleeps in a C call without giving up the GIL", seconds=FOREVER),
    _kind(
        "skip-collective", "the rank waits in its own code and never comes to the collective", seconds=FOREVER
    ),
    _kind("sigstop", "the rank stops itself with SIGSTOP"),
    _kind("rank-killed", "the rank kills itself with SIGKILL"),
    _kind("rank-crash", "the rank raises RuntimeError"),
    _kind("slow-rank", "the rank needs `factor` times as long for each step from `step` on", factor=4),
    _kind(
        "save-stall",
        "the checkpoint's storage stops answering in the first save after `step`",
        seconds=FOREVER,
    ),
    _kind(
        "disk-full",
        "the disk that the checkpoint goes to has `megabytes` left for one of the rank's files",
        megabytes=0.25,
    ),
    _kind("save-killed", "the rank is killed with SIGKILL while its part of the checkpoint is half written"),
    _kind("shm-full", "a /dev/shm of `megabytes` of the rank's own gets full", megabytes=2),
    _kind("host-oom", "host memory grows in the save until the kernel kills", megabytes=128),
    _kind("worker-oom", "a DataLoader worker's memory grows until the kernel kills", megabytes=256),
    _kind(
        "parent-oom", "as host-oom, and the limit is that of the parent of the ranks' cgroup", megabytes=128
    ),
    _kind(
        "rlimit-as", "the rank's addresses are limited to `gigabytes`, and its save wants more", gigabytes=64
    ),
    _kind("pids-limit", "the ranks' cgroup allows `spare` more processes, and the rank starts more", spare=6),
    Kind(
        "growing-save",
        "each save stages and keeps memory by a plan drawn from `seed`, in a cgroup that has no room for one of "
        "them; with fits=1 for all, and `spare` megabytes for what the job's own memory grows by",
        {"rank": 0, "seed": 1, "megabytes": 700, "fits": 0, "spare": 0},
    ),
    _kind("fd-exhaust", "the rank opens files until it may not", limit=1024),
    _kind("preprocess-on-rank-0", "rank 0 tokenises while the others wait: benign", rank=0, seconds=20),
    _kind("long-compile", "the rank waits for a compiler while the others wait for it: benign", seconds=20),
    _kind("slow-save", "the checkpoint is written slowly but steadily: benign", seconds=20),
    _kind("exception-then-teardown", "the rank raises, then hangs in an atexit function"),
    Kind("rendezvous", "the rank never joins the process group", {"rank": 1, "seconds": FOREVER}),
    Kind(
        "absent",
        "the rank has joined and never comes to the setting up of the groups",
        {"rank": 1, "seconds": FOREVER},
    ),
    _kind("data-lock", "a DataLoader worker takes a lock that it holds already"),
    _kind("data-worker-stopped", "a DataLoader worker stops itself with SIGSTOP"),
    _kind("extra-collective", "the rank reduces once more than the others in the data parallel group"),
    _kind("wrong-size", "a reduction over all ranks, and the rank's tensor has twice the elements"),
    _kind("wrong-dtype", "a reduction over all ranks, and the rank's tensor is float64 instead of float32"),
    _kind("wrong-op", "all ranks reduce, the rank broadcasts"),
    _kind("opposite-groups", "the rank reduces in two groups in the opposite order"),
    _kind("p2p-mismatch", "the rank receives from the next pipeline stage what that never sends"),
    _kind("uneven-data", "the rank's data ends early: it leaves its loop for the barrier behind it"),
    _kind("left-early", "the rank is done early and exits with 0"),
    _kind("stale-baton", "the rank waits for the lock file that a killed build of an extension left behind"),
    _kind("file-lock", "the rank waits for a file lock whose holder does nothing"),
    _kind(
        "fork-lock",
        "a child is forked while another thread holds a lock, and wants it; the rank waits for the child",
    ),
    _kind(
        "dead-producer", "the rank waits on a queue that its thread, ended by an exception, will never fill"
    ),
    _kind("pipe-full", "the rank writes to a pipe whose reader has stopped", seconds=FOREVER),
    _kind("compile-wait", "the rank asks a compiler that never answers", seconds=FOREVER),
    _kind("eval-hang", "the rank hangs in the metrics behind an evaluation", seconds=FOREVER),
    _kind("optimizer-hang", "the rank hangs in the optimizer's step", seconds=FOREVER),
    _kind("service-wait", "the rank waits for the answer of an HTTP service"),
    _kind("slow-step", "one step does the work of `factor` steps on every rank: benign", factor=5),
    _kind("long-eval", "an evaluation of `factor` batches on every rank: benign", factor=100),
    _kind("nan-loss", "the rank writes nan into a weight: loss and gradients are nan from then on", rank=1),
    _kind("cuda-oom", "the rank fills its GPU (needs a GPU)"),
    _kind("device-assert", "the rank looks up a token that its embedding does not have (needs a GPU)"),
    _kind("stuck-kernel", "a kernel that never ends runs on the rank's GPU (needs a GPU)"),
    Kind(
        "nccl-hosts",
        "each rank says that it is a node of its own: NCCL goes over the network (needs GPUs)",
        {"rank": 0},
    ),
    _kind("cpu-optimizer", "the optimizer works on the CPU of every rank for `seconds`: benign", seconds=20),
)
_BY_NAME = {kind.name: kind for kind in KINDS}
_WHOLE_NUMBERS = ("rank", "step", "limit", "spare", "seed")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault as asked for."""

    name: str
    options: Mapping[str, float]

    @property
    def rank(self) -> int:
        return int(self.options["rank"])

    @property
    def step(self) -> int:
        """Training steps are counted from 0, so step 0 is the first iteration."""
        return int(self.options.get("step", 0))

    def option(self, key: str) -> float:
        return self.options[key]

    def __str__(self) -> str:
        """The same fault as text again, every key spelt out."""
        return f"{self.name}:" + ",".join(f"{key}={value:g}" for key, value in self.options.items())


def parse(text: str) -> Fault:
    """Read one fault.

    >>> str(parse("data-hang:rank=0,step=3"))
    'data-hang:rank=0,step=3'
    """
    name, _, rest = text.strip().partition(":")
    kind = _BY_NAME.get(name)
    if kind is None:
        raise FaultError(f"there is no fault {name!r}\n\nhint: one of {', '.join(_BY_NAME)}")
    options = dict(kind.keys)
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in kind.keys:
            raise FaultError(
                f"fault {name} does not know {item!r}\n\n"
                f"hint: {name}[:key=value,...] with {', '.join(kind.keys)}; faults are {', '.join(_BY_NAME)}"
            )
        try:
            options[key] = int(value) if key in _WHOLE_NUMBERS else float(value)
        except ValueError:
            raise FaultError(
                f"fault {name}: {key}={value} is not a number\n\nhint: {name}:{key}={kind.keys[key]:g}"
            ) from None
        if not 0 <= options[key] < float("inf"):
            raise FaultError(
                f"fault {name}: {key}={value} is out of range\n\nhint: {name}:{key}={kind.keys[key]:g}"
            )
    return Fault(name, options)
