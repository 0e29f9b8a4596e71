"""Which ms-swift CMD will run, and what its own sources say of its flags; they are read, not imported."""

from __future__ import annotations

import re
from pathlib import Path

from diag.knowledge import swift_flags as known
from diag.launch.launchers.command import Command
from diag.preflight.software.argument_classes import ArgumentClasses, Unresolved
from diag.preflight.software.ask import Software
from diag.preflight.software.target import Target
from diag.preflight.software.trainer_flags import Call, Trainer

# modelscope:ubuntu22.04-cuda12.6.3-py311-torch2.7.1-vllm0.10.0-modelscope1.28.2-swift3.7.1
_IMAGE = re.compile(r"\bswift[:_-]?v?(\d+\.\d+(?:\.\d+)?)")


def find_trainer(
    call: Call, command: Command, target: Target, software: Software | None, told: str = ""
) -> Trainer:
    """`told` is a version that the user named; `software` what CMD's Python has, None where it did not answer."""
    if told:
        return Trainer(known.version(told), f"ms-swift {told}")
    if command.container is not None:
        image = command.container.image
        found = _IMAGE.search(image)
        if found is None:
            return Trainer(why=f"which ms-swift the image {image} has is not known")
        return Trainer(known.version(found[1]), f"ms-swift {found[1]} (by the image's name)")
    if target.missing_program or not target.is_of_command or software is None:
        return Trainer(why="the ms-swift that it will use is not known here")
    version = software.version("ms-swift")
    if known.version(version) is None:
        return Trainer(
            why=f"{software.executable} has no ms-swift" if not version else f"ms-swift is {version}"
        )
    return Trainer(known.version(version), f"ms-swift {version}", flags=_own_flags(call, software))


def _own_flags(call: Call, software: Software) -> frozenset[str] | None:
    places = {name: software.modules.get(name) for name in ("swift", "transformers")}
    folders = {name: Path(place).parent for name, place in places.items() if place}
    try:
        return (
            ArgumentClasses(folders).of_command(call.program, call.verb)
            if len(folders) == len(places)
            else None
        )
    except (Unresolved, OSError):
        return None
