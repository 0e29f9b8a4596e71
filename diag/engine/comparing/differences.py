"""What differs between two runs, most telling first. Judges nothing: that something differs is no cause yet."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from diag.engine.comparing.evidence import RunEvidence
from diag.text.units import (
    format_bytes,
    format_count,
    format_quantity,
    format_ranks,
    format_seconds,
)

# Ours: what two runs of the same job on the same nodes differ by anyway.
_OF_MEMORY, _OF_CLOCK, _OF_STEPS, _OF_PHASES = 0.05, 0.03, 0.05, 0.25
_LEAST_PHASE_SECONDS = 5.0
_MOST_LINES = 12
_LONGEST_LINE = 160
_LACKING = {
    "packages": "no reading of installed packages",
    "environment": "no environment of a rank",
    "transports": "no log of NCCL",
    "gpus": "no reading of GPUs",
    "phases": "no phases",
    "steps": "no step times",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """`a` and `b` as a person reads them, "-" for nothing; of a line of the log only `b` is given."""

    part: str
    name: str
    a: str
    b: str

    def to_json(self) -> dict[str, str]:
        return {"part": self.part, "name": self.name, "a": self.a, "b": self.b}


@dataclass(slots=True)
class Comparison:
    """`alike`: parts in which nothing differs; `not_checked`: part -> why."""

    differences: list[Difference] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    not_checked: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)  # of a part: lines that were too many


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: `argv` and `end` as the run shows them."""

    evidence: RunEvidence
    argv: Sequence[str]
    end: Mapping[str, str]

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.evidence.facts


def compare(a: Side, b: Side, each_time: frozenset[str] = frozenset()) -> Comparison:
    """`each_time`: variables that are others in every run, and tell nothing."""
    found = Comparison()
    for part, rows in (
        ("versions", _versions(a, b, found)),
        ("nodes", _nodes(a, b)),
        ("environment", _environment(a, b, each_time, found)),
        ("command", _command(a, b)),
        ("transports", _transports(a, b, found)),
        ("GPUs", _gpus(a, b, found)),
        ("end", _end(a, b)),
        ("phases", _phases(a, b, found)),
        ("steps", _steps(a, b, found)),
        ("loss", _loss(a, b, found)),
        ("log", _log(a, b, found)),
    ):
        differences = [Difference(part, *row) for row in rows]
        found.differences += differences
        if not differences and part not in found.not_checked:
            found.alike.append(part)
    return found


_Rows = Iterator[tuple[str, str, str]]


def _lacks(found: Comparison, part: str, a: Side, b: Side, key: str) -> bool:
    """Whether one of them has nothing of it: then it is not checked."""
    lacking = [name for name, side in (("A", a), ("B", b)) if side.facts.get(key) is None]
    if lacking:
        found.not_checked[part] = f"{_LACKING[key]} in {'either' if len(lacking) > 1 else lacking[0]}"
    return bool(lacking)


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> _Rows:
    for name in dict.fromkeys((*a, *b)):
        if a.get(name) != b.get(name):
            yield name, _text(a.get(name)), _text(b.get(name))


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)


def _versions(a: Side, b: Side, found: Comparison) -> _Rows:
    told = [side.facts.get("versions") or {} for side in (a, b)]
    # what only one of them told: the other's log may be silent of it
    both = (told[0].keys() & told[1].keys()) - (a.facts.get("packages") or {}).keys()
    yield from _pairs(*({name: one[name] for name in one if name in both} for one in told))
    if _lacks(found, "versions", a, b, "packages"):
        return
    packages = a.facts["packages"], b.facts["packages"]
    yield from _pairs(*({name: one[name] for name in sorted(one)} for one in packages))


def _nodes(a: Side, b: Side) -> _Rows:
    yield from _pairs(
        *(
            {
                "nodes": side.facts.get("hosts"),
                "ranks": side.facts.get("world_size"),
                "GPUs": _kinds(side.facts.get("gpus")),
            }
            for side in (a, b)
        )
    )
    one, other = (_uuids(side.facts.get("gpus")) for side in (a, b))
    if one - other and other - one and a.facts.get("hosts") == b.facts.get("hosts"):
        yield "GPU UUIDs", _text(sorted(one - other)), _text(sorted(other - one))


def _kinds(gpus: Any) -> str:
    names = [str(gpu.get("name")) for gpu in gpus or ()]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _uuids(gpus: Any) -> set[str]:
    return {str(gpu.get("uuid")) for gpu in gpus or ()}


def _environment(a: Side, b: Side, each_time: frozenset[str], found: Comparison) -> _Rows:
    if _lacks(found, "environment", a, b, "environment"):
        return
    sides = [
        {name: str(value) for name, value in side.facts["environment"].items() if name not in each_time}
        for side in (a, b)
    ]
    yield from _pairs(*sides)


def _command(a: Side, b: Side) -> _Rows:
    """Words that one of them has and the other has not, in their order; an option with its value."""
    one, other = _options(a.argv), _options(b.argv)
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind != "equal":
            yield "command", " ".join(one[first:last]) or "-", " ".join(other[begin:end]) or "-"
    yield from _pairs({"directory": a.facts.get("cwd")}, {"directory": b.facts.get("cwd")})


def _options(argv: Sequence[str]) -> list[str]:
    """
    >>> _options(["torchrun", "t.py", "--lr", "1e-5", "--bf16", "--x=1"])
    ['torchrun', 't.py', '--lr 1e-5', '--bf16', '--x=1']
    """
    found: list[str] = []
    for word in argv:
        previous = found[-1] if found else ""
        takes = previous.startswith("--") and "=" not in previous and " " not in previous
        if takes and not word.startswith("-"):
            found[-1] = f"{previous} {word}"
        else:
            found.append(word)
    return found


def _transports(a: Side, b: Side, found: Comparison) -> _Rows:
    if not _lacks(found, "transports", a, b, "transports"):
        names = {
            "nets": "NCCL network",
            "gpu_direct": "GPUDirect RDMA",
            "devices": "RDMA ports",
            "bootstrap": "bootstrap",
        }
        yield from _pairs(
            *({name: side.facts["transports"].get(key) for key, name in names.items()} for side in (a, b))
        )


def _gpus(a: Side, b: Side, found: Comparison) -> _Rows:
    if _lacks(found, "GPUs", a, b, "gpus"):
        return
    first, second = ({gpu["index"]: gpu for gpu in side.facts["gpus"]} for side in (a, b))
    for index in sorted(first.keys() & second.keys()):
        one, other = first[index], second[index]
        for key, name, least, form in (
            (
                "busy_clock_hertz",
                "clock at work",
                _OF_CLOCK,
                lambda hertz: format_quantity(hertz / 1e6, "MHz"),
            ),
            ("memory_peak_bytes", "memory at most", _OF_MEMORY, format_bytes),
            ("power_limit_watts", "power limit", 0.0, lambda watts: format_quantity(watts, "W")),
        ):
            if _far(one.get(key), other.get(key), least):
                yield f"GPU {index}, {name}", form(one[key]), form(other[key])


def _far(one: Any, other: Any, ratio: float) -> bool:
    """Whether two numbers differ by more than that share of the first; False where one is none."""
    numbers = all(isinstance(each, (int, float)) and math.isfinite(each) for each in (one, other))
    return numbers and abs(other - one) > ratio * abs(one)


def _end(a: Side, b: Side) -> _Rows:
    yield from _pairs(a.end, b.end)


def _phases(a: Side, b: Side, found: Comparison) -> _Rows:
    if _lacks(found, "phases", a, b, "phases"):
        return
    one, other = a.facts["phases"], b.facts["phases"]
    for phase in dict.fromkeys((*one, *other)):
        first, second = one.get(phase), other.get(phase)
        if phase in ("steady", "ended"):  # how long it trained is no difference of its own
            continue
        if first is None or second is None:
            if (first or second or 0.0) >= _LEAST_PHASE_SECONDS:
                yield phase, *(("-" if each is None else format_seconds(each)) for each in (first, second))
        elif abs(second - first) >= _LEAST_PHASE_SECONDS and _far(first, second, _OF_PHASES):
            yield phase, format_seconds(first), format_seconds(second)


def _steps(a: Side, b: Side, found: Comparison) -> _Rows:
    if _lacks(found, "steps", a, b, "steps"):
        return
    one, other = a.facts["steps"], b.facts["steps"]
    if any(_far(one.get(key), other.get(key), _OF_STEPS) for key in ("p5", "median", "p95")):
        yield "seconds a step", _spread(one), _spread(other)


def _spread(steps: Mapping[str, Any]) -> str:
    """
    >>> _spread({"count": 40, "p5": 0.5, "median": 0.52, "p95": 1.9})
    'median 0.52 s, 5-95 % 0.5 s to 1.9 s, 40 steps'
    """
    low, high = format_seconds(steps.get("p5")), format_seconds(steps.get("p95"))
    count = format_count(int(steps.get("count") or 0), "step")
    return f"median {format_seconds(steps.get('median'))}, 5-95 % {low} to {high}, {count}"


def _loss(a: Side, b: Side, found: Comparison) -> _Rows:
    """The first step of both at which the log shows another number."""
    compared = False
    for name, one, other in (
        ("loss", a.evidence.losses, b.evidence.losses),
        ("gradient norm", a.evidence.norms, b.evidence.norms),
    ):
        common = sorted((one or {}).keys() & (other or {}).keys())
        compared |= bool(common)
        step = next((step for step in common if not _same((one or {})[step], (other or {})[step])), None)
        if step is not None and one and other:
            alike = (
                f", {format_ranks([s for s in common if s < step], noun='step')} alike"
                if step != common[0]
                else ""
            )
            yield f"first at step {step}: {name}{alike}", _digits(one[step]), _digits(other[step])
    if not compared:
        found.not_checked["loss"] = "no step of both shows a loss"


def _digits(value: float) -> str:
    """As the log has it: where two numbers differ may be their last digit."""
    return f"{value:.9g}"


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _log(a: Side, b: Side, found: Comparison) -> _Rows:
    """Lines of B of a form that A has not."""
    one, other = a.evidence.forms, b.evidence.forms
    if not one or not other:
        lacking = [name for name, forms in (("A", one), ("B", other)) if not forms]
        found.not_checked["log"] = f"no output in {'either' if len(lacking) > 1 else lacking[0]}"
        return
    new = [line for form, line in other.items() if form not in one]
    if len(new) > _MOST_LINES:
        found.left_out["log"] = len(new) - _MOST_LINES
    for line in new[:_MOST_LINES]:
        yield "new in B", "-", line[:_LONGEST_LINE]


def each_time(runs: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Variables that have another value in each of these runs' facts, of three at least: the job's number, a port."""
    environments = [facts["environment"] for facts in runs if isinstance(facts.get("environment"), dict)]
    if len(environments) < 3:
        return frozenset()
    names = set.intersection(*(set(one) for one in environments))
    return frozenset(
        name for name in names if len({str(one[name]) for one in environments}) == len(environments)
    )


def program_of(argv: Sequence[str]) -> tuple[str, ...]:
    """By which two commands run the same: the first script, else the module, else the first two words that are no options.

    >>> program_of(["torchrun", "--nproc_per_node", "8", "/data/train.py", "--lr", "1"]), program_of(["swift", "rlhf", "--x"])
    (('train.py',), ('swift', 'rlhf'))
    >>> program_of(["python", "-m", "my.train", "--lr", "1"]), program_of([])
    (('my.train',), ())
    """
    script = next((word for word in argv if word.endswith((".py", ".sh")) and not word.startswith("-")), None)
    if script is not None:
        return (PurePath(script).name,)
    if "-m" in argv[:-1]:
        return (argv[[*argv].index("-m") + 1],)
    return tuple(PurePath(word).name for word in argv[:2] if not word.startswith("-"))
