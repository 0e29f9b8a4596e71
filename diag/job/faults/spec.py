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
    _kind("skip-collective", "the rank waits in its own code and never comes to the collective", seconds=FOREVER),
    _kind("sigstop", "the rank stops itself with SIGSTOP"),
    _kind("rank-killed", "the rank kills itself with SIGKILL"),
    _kind("rank-crash", "the rank raises RuntimeError"),
    _kind("slow-rank", "the rank needs `factor` times as long for each step from `step` on", factor=4),
    _kind("save-stall", "the checkpoint's storage stops answering in the first save after `step`", seconds=FOREVER),
    _kind("shm-full", "a /dev/shm of `megabytes` of the rank's own gets full", megabytes=2),
    _kind("host-oom", "host memory grows in the save until the kernel kills", megabytes=128),
    _kind("fd-exhaust", "the rank opens files until it may not", limit=1024),
    _kind("preprocess-on-rank-0", "rank 0 tokenises while the others wait: benign", rank=0, seconds=20),
    _kind("long-compile", "the rank waits for a compiler while the others wait for it: benign", seconds=20),
    _kind("slow-save", "the checkpoint is written slowly but steadily: benign", seconds=20),
    _kind("exception-then-teardown", "the rank raises, then hangs in an atexit function"),
    Kind("rendezvous", "the rank never joins the process group", {"rank": 1, "seconds": FOREVER}),
)
_BY_NAME = {kind.name: kind for kind in KINDS}
_WHOLE_NUMBERS = ("rank", "step", "limit")


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
            raise FaultError(f"fault {name}: {key}={value} is not a number\n\nhint: {name}:{key}={kind.keys[key]:g}") from None
        if not 0 <= options[key] < float("inf"):
            raise FaultError(f"fault {name}: {key}={value} is out of range\n\nhint: {name}:{key}={kind.keys[key]:g}")
    return Fault(name, options)
