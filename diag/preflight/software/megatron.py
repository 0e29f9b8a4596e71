"""Which Megatron CMD will import, and whether it is the one that its ms-swift was written for; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from diag.preflight.line import Line, line, table
from diag.preflight.software.ask import Software
from diag.preflight.software.target import Target, is_megatron


def before(target: Target, swift_version: str) -> list[str]:
    """What goes before sys.path: ms-swift 3.x puts MEGATRON_LM_PATH there, 4.x does not read it."""
    path = target.environment.get("MEGATRON_LM_PATH", "")
    return [path] if path and target.launcher == "megatron" and swift_version.startswith("3.") else []


def check_megatron(target: Target, software: Software) -> Iterator[Line]:
    if not is_megatron(target):
        return
    swift, path = software.version("ms-swift"), target.environment.get("MEGATRON_LM_PATH", "")
    by_swift = target.launcher == "megatron"
    if by_swift and swift.startswith("3."):
        yield _of_swift_3(target, software, path)
        return
    if by_swift and path:
        yield line("software.megatron-path-unread", path=path, swift=swift or "4.x")
    yield _imported(target, software)


def _of_swift_3(target: Target, software: Software, path: str) -> Line:
    swift, there = software.version("ms-swift"), software.megatron_core_version
    known = table("versions")["megatron-of-swift"]
    wanted = software.swift_wants or known.get(".".join(swift.split(".")[:2]), "")
    values = {"swift": swift, "wanted": wanted, "branch": wanted or "core_r0.15.0"}
    if not path:
        return line("software.megatron-cloned", **values)
    tree = Path(path)
    if not (tree / "megatron" / "training").is_dir():
        wrong = "has no megatron/training" if tree.is_dir() else "is not there"
        return line("software.megatron-no-tree", path=path, wrong=wrong, **values)
    numbers = re.search(r"(\d+\.\d+)", wanted)
    if numbers and there and not there.startswith(numbers[1] + "."):
        return line("software.megatron-other-release", path=path, software=software, **values)
    return _imported(target, software)


def _imported(target: Target, software: Software) -> Line:
    core, training, by_swift = (
        software.megatron_core,
        software.megatron_training,
        target.launcher == "megatron",
    )
    if core is None:
        wanted = "'megatron-core==0.16.1'" if by_swift else "megatron-core"
        return line("software.megatron-no-core", software=software, core=wanted)
    version, pip = software.megatron_core_version, software.version("megatron-core")
    said = f"megatron.core {version} of {Path(core).parent.parent}"
    other = Path(training).parent.parent if training is not None else None
    if training is None and _wants_training(target):
        key = "no-training"
    elif other is not None and other != Path(core).parent.parent and not by_swift:
        key = "two-trees"
    elif pip and version and not pip.startswith(version):
        key = "hides-pip" if by_swift else "before-pip"
    else:
        key = "fits"
        said += "" if training is None else ", with megatron.training"
    return line(f"software.megatron-{key}", said=said, other=other, software=software, pip=pip)


def _wants_training(target: Target) -> bool:
    return any(name.startswith("megatron.training") for name in target.imports or ())
