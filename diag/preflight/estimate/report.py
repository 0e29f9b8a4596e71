"""An estimate as text and as `diag.estimate/1`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.advice import Advice
from diag.preflight.estimate.cheapest import cheapest
from diag.preflight.estimate.estimate import Estimate, terms_json
from diag.preflight.estimate.parameters import count
from diag.preflight.estimate.speed_words import speed_words
from diag.text.columns import columns, pad, wrap_wide
from diag.text.units import format_bytes, format_ratio

_GIB = 1 << 30
_WIDTH = 110
_SHOWN_ADVICE = 5
# What gives a text in the reader's language, while one is made.
_SAY: ContextVar[Callable[[str], str]] = ContextVar("say", default=str)
_VERDICT_COLOUR = {"fits": "32", "tight": "33", "does not fit": "31"}


def text(
    estimate: Estimate,
    *,
    colour: bool = False,
    sources: bool = False,
    gpu: str = "",
    step_seconds: float | None = None,
    say: Callable[[str], str] = str,
) -> str:
    """`gpu`: its name; `step_seconds`: how long a step takes, where the user knows; `say` gives a text in the reader's
    language."""
    token = _SAY.set(say)
    try:
        return _text(estimate, colour, sources, gpu, step_seconds)
    finally:
        _SAY.reset(token)


def _say(text: str) -> str:
    return _SAY.get()(text)


def _text(estimate: Estimate, colour: bool, sources: bool, gpu: str, step_seconds: float | None) -> str:
    lines = [
        *_answer(estimate, colour),
        "",
        *_filled(estimate.basis, _WIDTH),
        _say(f"read as {estimate.plan.trainer}"),
    ]
    lines += [_say(f"global batch: {estimate.batch_words}")] if estimate.batch_words else []
    lines.append("")
    lines += _gpu_lines(estimate, colour, sources)
    lines += _host_lines(estimate, colour, sources)
    lines += _advice_lines(estimate)
    trust = [_say("how far to trust it"), *_wrapped(estimate.trust.words), ""]
    lines += trust
    if estimate.rules:
        lines.append(_say("rules of thumb, for one GPU"))
        lines += [
            f"  {pad(_say(rule.name), 38)}{_gib(rule.size_bytes)}  {_say(rule.formula)}"
            for rule in estimate.rules
        ]
        lines.append("")
    speed = speed_words(estimate.plan, gpu, step_seconds)
    lines += [_say("speed"), *_wrapped(speed), ""] if speed else []
    lines += _note_lines(estimate)
    return "\n".join(lines).rstrip()


def _answer(estimate: Estimate, colour: bool) -> list[str]:
    """What was asked, in two lines, and of what is short the first thing to change; what it rests on comes after."""
    machine, host = estimate.machine, estimate.host_bytes + estimate.save_bytes
    each = [("one node", host, estimate.trust.host, estimate.host_verdict, machine.host_bytes)]
    if estimate.worst is not None:
        each.insert(
            0, ("one GPU", estimate.gpu_bytes, estimate.trust.gpu, estimate.gpu_verdict, machine.gpu_bytes)
        )
    lines = []
    for who, need, margin, verdict, have in each:
        line = _say(f"{who} needs {format_bytes(need)} +- {format_ratio(margin)}")
        if verdict != "unknown" and have is not None:
            line = _say(
                f"{who} needs {format_bytes(need)} +- {format_ratio(margin)}, of {format_bytes(have)}"
            )
            # at the longest sequences that CMD allows, where only those are too long
            over = verdict == "tight" and need > have
            line += "" if over else f": {_shown(verdict, colour)}"
        if who == "one GPU" and estimate.longest_sequence:
            line += _say(f"; fits up to {estimate.longest_sequence:,} tokens a sequence")
        lines.append(line)
        chosen = _cheapest(estimate, "GPU" if who == "one GPU" else "host", verdict)
        lines += _wrapped([f"first to try: {chosen[0].flags}: {_change(chosen[0])}"] if chosen else [])
    return lines


def _shown(verdict: str, colour: bool) -> str:
    said = _say(verdict)
    return f"\033[{_VERDICT_COLOUR[verdict]}m{said}\033[0m" if colour else said


def _cheapest(estimate: Estimate, where: str, verdict: str) -> list[Advice]:
    """Of what is short, the ways to less; none where nothing is."""
    if verdict not in ("tight", "does not fit"):
        return []
    items = [item for item in estimate.advice if (item.gpu_bytes if where == "GPU" else item.host_bytes) < 0]
    if where == "host":
        items.sort(key=lambda item: item.host_bytes)
    return cheapest(items, where, estimate.short, estimate.free)


def _wrapped(texts: Iterable[str]) -> list[str]:
    return [line for each in texts for line in _filled(each, _WIDTH, "  ", "    ", whole_words=True)]


def _filled(text: str, width: int, lead: str = "", rest: str = "", *, whole_words: bool = False) -> list[str]:
    """A text in the reader's language, wrapped."""
    shown = _say(text)
    if shown != text:
        return wrap_wide(shown, width, lead, rest)
    return textwrap.wrap(
        text, width, initial_indent=lead, subsequent_indent=rest,
        break_on_hyphens=not whole_words, break_long_words=not whole_words,
    )  # fmt: skip


def _gib(size: int) -> str:
    return f"{format_bytes(size):>12}"


def _table(terms: Iterable[MemoryTerm], sources: bool) -> list[str]:
    lines = []
    for term in terms:
        head = f"  {pad(_say(term.name), 26)}{_gib(term.size_bytes)}  "
        formula = _say(term.formula) + (f"  [{term.source}]" if sources and term.source else "")
        if head.isascii() and formula.isascii():
            rows = textwrap.wrap(formula, _WIDTH + 10, initial_indent=head, subsequent_indent=" " * len(head))
        else:
            rows = wrap_wide(formula, _WIDTH + 10, head, " " * columns(head))
        lines += rows or [head.rstrip()]
    return lines


def _verdict_line(verdict: str, have: int | None, need: int, origin: str, colour: bool) -> str:
    if verdict == "unknown":
        return f"  {_say(origin)}"
    shown = _shown(verdict, colour)
    left = (have or 0) - need
    rest = f"{format_bytes(left)} left" if left >= 0 else f"{format_bytes(-left)} too much"
    return f"  {shown}: " + _say(f"{rest} of {format_bytes(have or 0)} ({origin})")


def _gpu_lines(estimate: Estimate, colour: bool, sources: bool) -> list[str]:
    worst = estimate.worst
    if worst is None:
        return [_say("GPU memory: none, the job runs on the CPU"), ""]
    stages = len(estimate.needs)
    where = f" (pipeline stage {worst.stage + 1} of {stages})" if stages > 1 else ""
    lines = [
        _say(f"GPU memory of the rank that needs most{where}"),
        *_table(worst.terms, sources),
        f"  {pad(_say('total'), 26)}{_gib(worst.total)}  +- {format_ratio(estimate.trust.gpu)}",
    ]
    if stages > 1:
        others = (need for need in estimate.needs if need is not worst)
        sizes = ", ".join(f"{need.stage + 1}: {format_bytes(need.total)}" for need in others)
        lines.append("  " + _say(f"other stages: {sizes}"))
    have, origin = estimate.machine.gpu_bytes, estimate.machine.gpu_from
    if not (estimate.gpu_verdict == "tight" and worst.total > (have or 0)):
        lines.append(_verdict_line(estimate.gpu_verdict, have, worst.total, origin, colour))
    return [*lines, *_longest_lines(estimate), ""]


def _longest_lines(estimate: Estimate) -> list[str]:
    """Up to which length of its sequences a job fits that does not with the longest that CMD allows."""
    longest, batch = estimate.longest_sequence, estimate.plan.batch
    if longest is None:
        return []
    if not longest:
        return ["  " + _say("it does not fit with sequences of any length")]
    tokens = longest * batch.micro * batch.pairs
    flag = "--packing_length" if batch.packed else "--max_length"
    fits = f"fits up to {longest:,} tokens a sequence ({tokens:,} a micro-batch)"
    if batch.limited:
        return ["  " + _say(f"{fits}: {flag} {longest}, or data that is never longer")]
    limit = f"CMD sets no {flag}, and the total above is with the model's own limit of {batch.sequence:,}"
    return [
        "  "
        + _say(f"{fits} of {format_bytes(estimate.machine.gpu_bytes or 0)} ({estimate.machine.gpu_from})"),
        f"    {_say(limit)}",
    ]


def _host_lines(estimate: Estimate, colour: bool, sources: bool) -> list[str]:
    lines = [
        _say("host memory of one node"),
        *_table(estimate.host, sources),
        f"  {pad(_say('total'), 26)}{_gib(estimate.host_bytes)}",
        "  "
        + _say("on top while a checkpoint is saved:" if estimate.save else "a save needs nothing on top"),
    ]
    peak = estimate.host_bytes + estimate.save_bytes
    lines += _table(estimate.save, sources)
    lines.append(f"  {pad(_say('total at a save'), 26)}{_gib(peak)}  +- {format_ratio(estimate.trust.host)}")
    origin = estimate.machine.host_from
    if estimate.host_verdict == "unknown":
        origin = "this machine has no GPU, so its memory is not the job's; pass --host-memory with that of its nodes"
    lines.append(_verdict_line(estimate.host_verdict, estimate.machine.host_bytes, peak, origin, colour))
    if estimate.host_verdict in ("tight", "does not fit"):
        lines += _wrapped(_why_tight(estimate))
    if estimate.checkpoint_bytes:
        lines.append("  " + _say(f"a checkpoint on disk: {format_bytes(estimate.checkpoint_bytes)}"))
    return [*lines, ""]


def _why_tight(estimate: Estimate) -> list[str]:
    """What a host that is nearly full makes of a save."""
    every = (*estimate.host, *estimate.save)
    pinned = sum(
        term.size_bytes for term in every if term.source and "pinned" in f"{term.name} {term.formula}"
    )
    words = [
        "the kernel, its page cache of what is written and other programs of the node need memory besides"
    ]
    if pinned:
        words.append(
            f"{format_bytes(pinned)} of it are pinned: they can be neither swapped out nor taken back"
        )
    if estimate.plan.save.sharded and estimate.plan.framework == "megatron":
        words.append(
            "megatron-core up to 0.16 forks writers to save: where vm.overcommit_memory is 2 a fork needs room for all "
            "that its rank has, and fails with `Cannot allocate memory` though memory is free"
        )
    return words


def _advice_lines(estimate: Estimate) -> list[str]:
    gpu = [item for item in estimate.advice if item.gpu_bytes < 0]
    host = sorted((item for item in estimate.advice if item.host_bytes < 0), key=lambda item: item.host_bytes)
    parts = []
    for where, chosen, verdict in (("GPU", gpu, estimate.gpu_verdict), ("host", host, estimate.host_verdict)):
        if verdict in ("tight", "does not fit"):
            title = f"the cheapest ways to less {where} memory"
            parts.append((title, _cheapest(estimate, where, verdict)))
        else:
            parts.append((f"what would save {where} memory", chosen[:_SHOWN_ADVICE]))
    together = estimate.combination
    if together:
        enough = "none of these is enough alone, together they are"
        parts.append((enough if together.enough else _still(estimate, together.advice), [together.advice]))
    return [
        line
        for title, chosen in parts
        if chosen
        for line in (
            _say(title),
            *("  " + _say(f"with {item.flags}: {_change(item)}") for item in chosen),
            "",
        )
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
    return ", ".join(parts) + f" ({item.cost or 'no slower'})"


def _note_lines(estimate: Estimate) -> list[str]:
    lines: list[str] = []
    if estimate.notes:
        lines += [_say("assumed"), *(f"  {_say(note)}" for note in estimate.notes), ""]
    if estimate.plan.unknown:
        lines += [_say("flags that no known version of ms-swift has: " + ", ".join(estimate.plan.unknown))]
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
            "uncertainty": estimate.trust.gpu,
            "available_bytes": machine.gpu_bytes,
            "verdict": estimate.gpu_verdict,
            "longest_sequence": estimate.longest_sequence,
        },
        "host": {
            "terms": seen["host"],
            "save_terms": seen["save"],
            "bytes": estimate.host_bytes,
            "save_bytes": estimate.save_bytes,
            "peak_bytes": estimate.host_bytes + estimate.save_bytes,
            "uncertainty": estimate.trust.host,
            "available_bytes": machine.host_bytes,
            "verdict": estimate.host_verdict,
        },
        "checkpoint_bytes": estimate.checkpoint_bytes,
        "batch": estimate.batch,
        "trust": list(estimate.trust.words),
        "speed": seen["speed"],
        "fits": estimate.fits,
        "advice": [asdict(item) for item in estimate.advice],
        "combination": asdict(together.advice) | {"enough": together.enough} if together else None,
        "rules_of_thumb": terms_json(estimate.rules),
        "assumed": list(estimate.notes),
        "unknown_flags": list(estimate.plan.unknown),
    }
