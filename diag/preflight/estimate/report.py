"""An estimate as text and as `diag.estimate/1`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.advice import Advice
from diag.preflight.estimate.estimate import GPU_UNCERTAINTY, HOST_UNCERTAINTY, Estimate, terms_json
from diag.preflight.estimate.parameters import count
from diag.text.units import format_bytes, format_ratio

_GIB = 1 << 30
_WIDTH = 110
_SHOWN_ADVICE = 5
_VERDICT_COLOUR = {"fits": "32", "tight": "33", "does not fit": "31"}


def text(estimate: Estimate, *, colour: bool = False, sources: bool = False) -> str:
    lines = [*textwrap.wrap(estimate.basis, _WIDTH), f"read as {estimate.plan.trainer}", ""]
    lines += _gpu_lines(estimate, colour, sources)
    lines += _host_lines(estimate, colour, sources)
    lines += _advice_lines(estimate)
    lines.append("rules of thumb, for one GPU")
    lines += [f"  {rule.name:<38}{_gib(rule.size_bytes)}  {rule.formula}" for rule in estimate.rules]
    lines += _note_lines(estimate)
    return "\n".join(lines)


def _gib(size: int) -> str:
    return f"{format_bytes(size):>12}"


def _table(terms: Iterable[MemoryTerm], sources: bool) -> list[str]:
    lines = []
    for term in terms:
        head = f"  {term.name:<26}{_gib(term.size_bytes)}  "
        formula = term.formula + (f"  [{term.source}]" if sources and term.source else "")
        lines += textwrap.wrap(
            formula, _WIDTH + 10, initial_indent=head, subsequent_indent=" " * len(head)
        ) or [head.rstrip()]
    return lines


def _verdict_line(verdict: str, have: int | None, need: int, origin: str, colour: bool) -> str:
    if verdict == "unknown":
        return f"  {origin}"
    shown = f"\033[{_VERDICT_COLOUR[verdict]}m{verdict}\033[0m" if colour else verdict
    left = (have or 0) - need
    rest = f"{format_bytes(left)} left" if left >= 0 else f"{format_bytes(-left)} too much"
    return f"  {shown}: {rest} of {format_bytes(have or 0)} ({origin})"


def _gpu_lines(estimate: Estimate, colour: bool, sources: bool) -> list[str]:
    worst = estimate.worst
    if worst is None:
        return ["GPU memory: none, the job runs on the CPU", ""]
    stages = len(estimate.needs)
    where = f" (pipeline stage {worst.stage + 1} of {stages})" if stages > 1 else ""
    lines = [
        f"GPU memory of the rank that needs most{where}",
        *_table(worst.terms, sources),
        f"  {'total':<26}{_gib(worst.total)}  +- {format_ratio(GPU_UNCERTAINTY)}",
    ]
    if stages > 1:
        others = (need for need in estimate.needs if need is not worst)
        sizes = ", ".join(f"{need.stage + 1}: {format_bytes(need.total)}" for need in others)
        lines.append(f"  other stages: {sizes}")
    have, origin = estimate.machine.gpu_bytes, estimate.machine.gpu_from
    return [*lines, _verdict_line(estimate.gpu_verdict, have, worst.total, origin, colour), ""]


def _host_lines(estimate: Estimate, colour: bool, sources: bool) -> list[str]:
    lines = [
        "host memory of one node",
        *_table(estimate.host, sources),
        f"  {'total':<26}{_gib(estimate.host_bytes)}",
        "  on top while a checkpoint is saved:" if estimate.save else "  a save needs nothing on top",
    ]
    peak = estimate.host_bytes + estimate.save_bytes
    lines += _table(estimate.save, sources)
    lines.append(f"  {'total at a save':<26}{_gib(peak)}  +- {format_ratio(HOST_UNCERTAINTY)}")
    origin = estimate.machine.host_from
    if estimate.host_verdict == "unknown":
        origin = "this machine has no GPU, so its memory is not the job's; pass --host-memory with that of its nodes"
    lines.append(_verdict_line(estimate.host_verdict, estimate.machine.host_bytes, peak, origin, colour))
    return [*lines, f"  a checkpoint on disk: {format_bytes(estimate.checkpoint_bytes)}", ""]


def _advice_lines(estimate: Estimate) -> list[str]:
    gpu = [item for item in estimate.advice if item.gpu_bytes < 0]
    host = sorted((item for item in estimate.advice if item.host_bytes < 0), key=lambda item: item.host_bytes)
    parts = [
        ("what would save GPU memory", gpu[:_SHOWN_ADVICE]),
        ("what would save host memory", host[:_SHOWN_ADVICE]),
    ]
    together = estimate.combination
    if together:
        enough = "none of these is enough alone, together they are"
        parts.append((enough if together.enough else _still(estimate, together.advice), [together.advice]))
    return [
        line
        for title, chosen in parts
        if chosen
        for line in (title, *(f"  with {item.flags}: {_change(item)}" for item in chosen), "")
    ]


def _still(estimate: Estimate, tried: Advice) -> str:
    machine, host = estimate.machine, estimate.host_bytes + estimate.save_bytes
    over = [
        f"{format_bytes(need - have)} {where}"
        for verdict, need, have, where in (
            (estimate.gpu_verdict, estimate.gpu_bytes + tried.gpu_bytes, machine.gpu_bytes, "GPU"),
            (estimate.host_verdict, host + tried.host_bytes, machine.host_bytes, "host"),
        )
        if verdict != "unknown" and have is not None and need > have
    ]
    return f"the nearest of up to three together, still {' and '.join(over)} too much"


def _change(item: Advice) -> str:
    parts = [
        f"{format_bytes(size, sign=True)} {where}"
        for size, where in ((item.gpu_bytes, "GPU"), (item.host_bytes, "host"))
        if abs(size) > _GIB // 20
    ]
    return ", ".join(parts) + (f" ({item.cost})" if item.cost else "")


def _note_lines(estimate: Estimate) -> list[str]:
    lines: list[str] = []
    if estimate.notes:
        lines += ["", "assumed", *(f"  {note}" for note in estimate.notes)]
    if estimate.plan.unknown:
        lines += ["", "flags that no known version of ms-swift has: " + ", ".join(estimate.plan.unknown)]
    return lines


def document(estimate: Estimate) -> dict[str, Any]:
    """The shape of `diag.estimate/1`. Sizes are bytes."""
    worst, machine, together = estimate.worst, estimate.machine, estimate.combination
    seen = estimate.observation()
    layout = estimate.plan.layout
    return {
        "schema": "diag.estimate/1",
        "basis": estimate.basis,
        "model": {"name": estimate.plan.model, "parameters": count(estimate.plan.shape)},
        "layout": {
            name: getattr(layout, name)
            for name in ("nodes", "processes", "tp", "pp", "cp", "dp", "ep", "etp")
        },
        "gpu": {
            "terms": seen["gpu"],
            "bytes": estimate.gpu_bytes,
            "stage": worst.stage if worst else None,
            "stages": [need.total for need in estimate.needs],
            "uncertainty": GPU_UNCERTAINTY,
            "available_bytes": machine.gpu_bytes,
            "verdict": estimate.gpu_verdict,
        },
        "host": {
            "terms": seen["host"],
            "save_terms": seen["save"],
            "bytes": estimate.host_bytes,
            "save_bytes": estimate.save_bytes,
            "peak_bytes": estimate.host_bytes + estimate.save_bytes,
            "uncertainty": HOST_UNCERTAINTY,
            "available_bytes": machine.host_bytes,
            "verdict": estimate.host_verdict,
        },
        "checkpoint_bytes": estimate.checkpoint_bytes,
        "fits": estimate.fits,
        "advice": [asdict(item) for item in estimate.advice],
        "combination": asdict(together.advice) | {"enough": together.enough} if together else None,
        "rules_of_thumb": terms_json(estimate.rules),
        "assumed": list(estimate.notes),
        "unknown_flags": list(estimate.plan.unknown),
    }
