"""Whether what CMD's flags and the environment say of ranks, nodes and devices fits together. Names each
disagreement."""

from __future__ import annotations

from collections.abc import Iterable

from diag.preflight.launch_devices import count_devices, device_lines, ranks_here, seen_by_ranks
from diag.preflight.launch_facts import LaunchFacts
from diag.preflight.launch_layout import core_lines, layout_lines
from diag.preflight.launch_nodes import environment_lines, node_lines
from diag.preflight.line import Line, line
from diag.text.units import format_count


def check_launch(facts: LaunchFacts) -> Iterable[Line]:
    """Pure. The last line says what was compared, where nothing is wrong."""
    if not facts.given:
        return [line("launch.no-command")]
    lines = [*node_lines(facts), *environment_lines(facts), *device_lines(facts)]
    if facts.launch is None:
        return [*lines, line("launch.unread", why=facts.unread)]
    lines += [*layout_lines(facts), *core_lines(facts)]
    if facts.unsure and not any(one.status == "not checked" for one in lines):
        lines.append(line("launch.nodes-unknown", ranks=_ranks(facts), why=facts.unsure))
    if not any(one.status in ("problem", "not checked") for one in lines):
        lines.insert(0, line("launch.fits", summary=_summary(facts)))
    return lines


def _ranks(facts: LaunchFacts) -> str:
    ranks = ranks_here(facts)
    if ranks:
        return format_count(ranks, "rank")
    opaque = facts.launch is not None and facts.launch.opaque
    return "an unknown number of ranks" if opaque else "a rank for each device"


def _summary(facts: LaunchFacts) -> str:
    assert facts.launch is not None
    seen, nodes, given_by = seen_by_ranks(facts), facts.nodes or 1, facts.launch.processes_from
    text = (
        _ranks(facts)
        + (f" on each of {nodes} nodes" if nodes > 1 else "")
        + (f" ({given_by})" if given_by else "")
    )
    if seen.count:
        text += f", {count_devices(seen.count, 'GPU')} for them" + (f" ({seen.said})" if seen.said else "")
    return text
