"""Whether what CMD's flags and the environment say of ranks, nodes and devices fits together. Names each
disagreement."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from diag.preflight import ascend, gpus
from diag.preflight.launch_devices import device_lines, ranks_here, seen_by_ranks
from diag.preflight.launch_facts import LaunchFacts, launch_facts
from diag.preflight.launch_layout import core_lines, layout_lines
from diag.preflight.launch_nodes import environment_lines, node_lines
from diag.preflight.line import Line

WHAT = "launch"


def check_launch(command: Sequence[str]) -> Iterator[Line]:
    yield from launch_lines(launch_facts(command, os.environ, gpus.uuids_here(), ascend.npus_here()))


def launch_lines(facts: LaunchFacts) -> Iterable[Line]:
    """Pure. The last line says what was compared, where nothing is wrong."""
    if not facts.given:
        return [
            Line(
                WHAT,
                "not checked",
                "no command was given",
                "diag doctor -- CMD: the command that will be run",
            )
        ]
    lines = [*node_lines(facts), *environment_lines(facts), *device_lines(facts)]
    if facts.launch is None:
        lines.append(
            Line(
                WHAT,
                "not checked",
                f"CMD could not be read: {facts.unread}",
                "put the training command itself after --, not a program that starts it",
            )
        )
        return lines
    lines += [*layout_lines(facts), *core_lines(facts)]
    if facts.unsure and not any(line.status == "not checked" for line in lines):
        said = f"{_ranks(facts)} on this node; how many nodes there are is not known: {facts.unsure}"
        lines.append(
            Line(WHAT, "not checked", said, "the training command itself after --, with its numbers")
        )
    if not any(line.status in ("problem", "not checked") for line in lines):
        lines.insert(0, Line(WHAT, "ok", _summary(facts)))
    return lines


def _ranks(facts: LaunchFacts) -> str:
    ranks = ranks_here(facts)
    if ranks:
        return f"{ranks} rank{'' if ranks == 1 else 's'}"
    return (
        "an unknown number of ranks"
        if facts.launch is not None and facts.launch.opaque
        else "a rank for each device"
    )


def _summary(facts: LaunchFacts) -> str:
    assert facts.launch is not None
    seen = seen_by_ranks(facts)
    told = _ranks(facts) + (
        f" on each of {facts.nodes} nodes" if facts.nodes is not None and facts.nodes > 1 else ""
    )
    if facts.launch.processes_from:
        told += f" ({facts.launch.processes_from})"
    if seen.count:
        told += f", {seen.count} GPU{'' if seen.count == 1 else 's'} for them" + (
            f" ({seen.said})" if seen.said else ""
        )
    return told
