"""Which known troubles CMD may meet: by the versions of its Python, this machine, its environment and its flags; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from diag.knowledge.known_troubles import Facts, Trouble, packages_of, troubles
from diag.preflight.line import Line, line
from diag.preflight.software.ask import Software
from diag.preflight.software.target import Target

_LIBRARIES = {"nccl": "torch", "cudnn": "torch"}  # which torch loads
_MOST_NOTES = 3


def check_known(target: Target, software: Software, used: Collection[str] | None) -> Iterator[Line]:
    """A problem is only what fits by more than a version, and needs nothing else; what needs more is a note, and where no more
    than the version of a package is known, it is only named among what was looked at."""
    if not target.is_of_command:
        return  # versions of another Python tell nothing of the job's
    facts = facts_of(target, software)
    if software.torch_cuda and "nccl" not in facts.packages:
        yield line("software.known-no-nccl", software=software)
    found = [one for one in troubles().values() if one.fits_before_the_run(facts)]
    notes, quiet = [], []
    for one in found:
        if one.is_conditional and not one.needs and _uses(one, target, used):
            yield line("software.known", there=one.there(facts), trouble=one, fix=one.fix())
        elif one.is_conditional or one.is_of_one_release:
            notes.append(one)
        else:
            quiet.append(one.id)
    if notes:
        said = [f"{one.there(facts)}: {one.what} ({one.id})" for one in notes[:_MOST_NOTES]]
        said += [f"and {len(notes) - _MOST_NOTES} more"] if len(notes) > _MOST_NOTES else []
        explain = "; ".join(f"`diag explain {one.id}`" for one in notes)
        yield line("software.known-notes", notes="; ".join(said), explain=explain)
    elif len(quiet) == len(found):
        named = f"; those that need more than a version: {', '.join(quiet)}" if quiet else ""
        yield line("software.known-none", count=len(troubles()), quiet=named)


def facts_of(target: Target, software: Software) -> Facts:
    packages = packages_of(software.installed)
    if software.megatron_core_version:
        packages["megatron-core"] = software.megatron_core_version
    return Facts(packages, software.markers.get("platform_machine", ""), target.environment, target.words)


def _uses(one: Trouble, target: Target, used: Collection[str] | None) -> bool:
    known = {*(used or ()), *(("torch",) if target.launcher != "python" else ())}
    return all(_LIBRARIES.get(name, name) in known for name in one.packages)
