"""What is wrong with a job's environment variables: advice once copied that harms, or that nothing reads.
Pure.

Says what a variable really does and what to do instead; whoever calls knows where it was set (environment,
nccl.conf). A variable that may belong to a plugin of NCCL, or to the job's own code, is left alone. Which
values are meant is in env_lint.yaml, names in nccl_variables.yaml.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from diag.knowledge import table
from diag.model import Severity
from diag.text.units import format_seconds

Version = tuple[int, ...]


@cache
def nccl_variables() -> dict[str, Version]:
    """Name -> the first version of NCCL that is known to read it."""
    rows = table("nccl_variables")["since"].items()
    return {f"NCCL_{name}": _version(since) for since, names in rows for name in names.split()}


@cache
def removed_from_nccl() -> dict[str, tuple[Version, str]]:
    """Name -> gone since, and what took its place."""
    rows = table("nccl_variables")["removed"].items()
    return {name: (_version(row["since"]), row["instead"]) for name, row in rows}


@cache
def torch_variables() -> frozenset[str]:
    return frozenset(table("nccl_variables")["torch"].split())


@cache
def renamed_in_torch() -> dict[str, tuple[str, str]]:
    """Old name -> the new one, and since which torch."""
    rows = table("nccl_variables")["renamed_in_torch"].items()
    return {old: (row["new"], row["since"]) for old, row in rows}


@cache
def invented() -> dict[str, str]:
    """Names that nothing reads -> what is meant."""
    rows = table("nccl_variables")["invented"]
    return {name: row["instead"] for row in rows for name in row["names"].split()}


def _version(text: str) -> Version:
    return tuple(map(int, text.split(".")))


_INFO, _WARNING = Severity.INFO, Severity.WARNING
# Of plugins, forks, tests and builds: not NCCL's own, and not ours to judge.
_NOT_NCCLS = re.compile(
    r"NCCL_(OFI|IBEXT|UCX|SHARP|PLUGIN|FASTRAK|GPUDIRECTTCPX|TCPX|FLEET|TUNER|INSPECTOR|PROFILER|TESTS?|MSCCL|MSCCLPP|CTRAN|SHIMNET|"
    r"GDRCOPY|EXT|AWS|ANP|HIER|DOCA|RCCL|VERSION|HOME|ROOT|DIR|PATH|INCLUDE|LIB|LIBRARY|SRC|REPO|TAG|BRANCH|BUILD|PACKAGE|CUDA|USE)(_|$)"
)


@dataclass(frozen=True, slots=True)
class Advice:
    """`id` is env-harmful or env-no-effect; `does` what the variable really does; `instead` what to do, as an
    order."""

    id: str
    variable: str
    value: str
    severity: Severity
    does: str
    instead: str


@dataclass(frozen=True, slots=True)
class _Job:
    env: Mapping[str, str]
    nodes: int | None
    nccl_version: tuple[int, ...] | None
    rdma: bool | None

    def useless(self, name: str, does: str, instead: str, severity: Severity = _WARNING) -> Advice:
        return Advice("env-no-effect", name, self.env[name], severity, does, instead)


def lint(
    environment: Mapping[str, str],
    *,
    nodes: int | None,
    nccl_version: tuple[int, ...] | None,
    rdma: bool | None,
) -> Iterator[Advice]:
    """At most one advice a variable, the harmful ones first.

    `nodes` of the job, `nccl_version` such as (2, 27, 5), `rdma` whether this node has RDMA devices; None for
    what is not known.

    >>> [a.variable for a in lint({"NCCL_TIMEOUT": "3600", "NCCL_IB_DISABLE": "1"}, nodes=2, nccl_version=None, rdma=True)]
    ['NCCL_IB_DISABLE', 'NCCL_TIMEOUT']
    """
    job = _Job(environment, nodes, nccl_version, rdma)
    advised = set()
    for check in (_by_value, _read_by_nothing, _not_of_this_nccl, _old_names_of_torch, _misspelt):
        for advice in check(job):
            if advice.variable not in advised:
                advised.add(advice.variable)
                yield advice


def number(text: str) -> int:
    """As C's strtoll(text, NULL, 0) takes it: leading digits, hexadecimal and octal too, 0 for words.

    >>> number("1"), number("true"), number("0x10"), number("8M"), number("-1")
    (1, 0, 16, 8, -1)
    """
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") and len(digits) > 1 else 10
    return (-1 if match[1] == "-" else 1) * int(digits, base)


# --- by the table


def _by_value(job: _Job) -> Iterator[Advice]:
    for kind in ("harmful", "no_effect"):
        for row in table("env_lint")[kind]:
            for name in row["variables"]:
                if job.env.get(name) and _concerns(job, name, row):
                    yield _advice(job, f"env-{kind.replace('_', '-')}", name, row)


def _concerns(job: _Job, name: str, row: Mapping[str, Any]) -> bool:
    where = row.get("nodes")
    if where == "several" and (job.nodes is None or job.nodes < 2):
        return False
    if where == "maybe_rdma" and (job.nodes == 1 or job.rdma is False):
        return False
    conditions = {name: row.get("when", {}), **row.get("also", {})}
    return all(_fits(job.env.get(other, ""), wanted) for other, wanted in conditions.items())


def _fits(value: str, wanted: Mapping[str, Any]) -> bool:
    word = value.strip().upper()

    def holds(condition: str, given: Any) -> bool:
        if condition in ("is", "not"):
            return bool((word in [one.upper() for one in given]) == (condition == "is"))
        if condition == "not_exactly":
            return bool(value not in given)
        if condition == "has":
            return bool(given in re.split(r"[,\s]+", value))
        if condition == "length":
            return bool(len(value) == given)
        if not value:
            return False
        return bool(number(value)) if given == "nonzero" else bool(given[0] <= number(value) <= given[1])

    return all(holds(condition, given) for condition, given in wanted.items())


def _advice(job: _Job, kind: str, name: str, row: Mapping[str, Any]) -> Advice:
    level = row.get("severity", "warning")
    count = number(job.env[name])
    does = row["does"].format(
        value=job.env[name],
        number=count,
        nodes=job.nodes,
        here="this node has RDMA devices, and " if job.rdma else "",
        ib_wait=format_seconds(4.096e-6 * 2.0 ** max(-99, min(count, 31))),
    )
    severity = _INFO if level == "info" or (level == "by_rdma" and not job.rdma) else _WARNING
    return Advice(kind, name, job.env[name], severity, does, row["instead"])


# --- by the names


def _read_by_nothing(job: _Job) -> Iterator[Advice]:
    does = "neither NCCL nor torch reads it: it does nothing unless the training script reads it itself"
    for name, instead in invented().items():
        if job.env.get(name):
            yield job.useless(name, does, instead)


def _not_of_this_nccl(job: _Job) -> Iterator[Advice]:
    version = job.nccl_version
    for name, (gone, instead) in removed_from_nccl().items():
        if not job.env.get(name):
            continue
        remedy = f"unset it ({instead})" if instead else "unset it"
        if gone <= (2, 5):
            does = f"NCCL {dotted(gone)} and later (2019 at the latest) do not read it"
            yield job.useless(name, does, remedy)
        elif version is not None and version[:2] >= gone:
            does = f"NCCL {dotted(gone)} and later do not read it, and this is {dotted(version)}"
            yield job.useless(name, does, remedy)
    known = nccl_variables()
    if version is None or version[:2] > max(known.values()):
        return  # newer than any that was checked
    for name, first in known.items():
        if job.env.get(name) and first > version[:2]:
            does = f"NCCL reads it from {dotted(first)} on, and this is {dotted(version)}"
            yield job.useless(name, does, "update NCCL, or unset it", _INFO)


def _old_names_of_torch(job: _Job) -> Iterator[Advice]:
    for old, (new, version) in renamed_in_torch().items():
        if job.env.get(old):
            also = f"; {new} is set too and wins" if job.env.get(new) else ""
            does = (
                f"it is the old name of torch's {new} (since torch {version}), still read with a warning; NCCL itself "
                f"never read it{also}"
            )
            yield job.useless(old, does, f"set {new}, or nothing", _INFO)


def is_of_plugin(name: str) -> bool:
    """Whether it is one of a plugin, a fork, a test or a build, as its name says.

    >>> is_of_plugin("NCCL_OFI_PROTOCOL"), is_of_plugin("NCCL_DEBUG")
    (True, False)
    """
    return _NOT_NCCLS.match(name) is not None


def _misspelt(job: _Job) -> Iterator[Advice]:
    of_nccl, of_torch = nccl_variables(), torch_variables()
    known = {*of_nccl, *of_torch, *invented(), *renamed_in_torch(), *removed_from_nccl()}
    for name in sorted(job.env):
        if not job.env[name] or name in known or not name.startswith(("NCCL_", "TORCH_NCCL_")):
            continue
        near = (
            () if _NOT_NCCLS.match(name) else difflib.get_close_matches(name, [*of_nccl, *of_torch], 1, 0.92)
        )
        for right in near:
            yield job.useless(
                name, f"nothing is known to read it; did you mean {right}?", f"spell it {right}"
            )
    for name in sorted(job.env):  # ncclParam: strtoll, which makes 0 of any word
        if name in of_nccl and name.endswith(("_DISABLE", "_ENABLE")) and job.env[name].strip().isalpha():
            does = f"NCCL expects a number here and reads {job.env[name].strip()!r} as 0"
            yield job.useless(name, does, "write 1 or 0")


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
