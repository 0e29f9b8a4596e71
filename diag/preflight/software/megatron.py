"""Which Megatron CMD will import, and whether it is the one that its ms-swift was written for; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from diag.preflight.line import Line
from diag.preflight.software.concern import is_megatron
from diag.preflight.software.facts import Software
from diag.preflight.software.target import Target

_WHAT = "Megatron"
# Of ms-swift 3.x, where its own swift/megatron/init.py does not tell: swift/megatron/init.py of 3.7.3 to
# 3.12.6.
_WANTED = {"3.7": "core_r0.13.0", "3.8": "core_r0.13.0", "3.9": "core_r0.13.0", "3.10": "core_r0.14.0", "3.11": "core_r0.15.0",
           "3.12": "core_r0.15.0"}  # fmt: skip


def before(target: Target, swift_version: str) -> list[str]:
    """What goes before sys.path: ms-swift 3.x puts MEGATRON_LM_PATH there, 4.x does not read it."""
    path = target.environment.get("MEGATRON_LM_PATH", "")
    return [path] if path and target.launcher == "megatron" and swift_version.startswith("3.") else []


def check_megatron(target: Target, software: Software) -> Iterator[Line]:
    if not is_megatron(target):
        return
    swift, path = software.version("ms-swift"), target.environment.get("MEGATRON_LM_PATH", "")
    if target.launcher == "megatron" and swift.startswith("3."):
        yield from _of_swift_3(target, software, path)
        return
    if target.launcher == "megatron" and path:
        yield Line(
            _WHAT,
            "note",
            f"MEGATRON_LM_PATH={path} is set, and ms-swift {swift or '4.x'} does not read it",
            "unset it; megatron.core comes from pip",
        )
    yield from _imported(target, software)


def _of_swift_3(target: Target, software: Software, path: str) -> Iterator[Line]:
    swift = software.version("ms-swift")
    wanted = software.swift_wants or _WANTED.get(".".join(swift.split(".")[:2]), "")
    clone = f"git clone -b {wanted or 'core_r0.15.0'} https://github.com/NVIDIA/Megatron-LM; export MEGATRON_LM_PATH=$PWD/Megatron-LM"
    if not path:
        yield Line(
            _WHAT,
            "note",
            f"MEGATRON_LM_PATH is not set: each start of ms-swift {swift} clones Megatron-LM {wanted} with git and "
            "installs it with pip, which needs the network and a folder that may be written",
            clone,
        )
        return
    tree = Path(path)
    if not (tree / "megatron" / "training").is_dir():
        what = "is not there" if not tree.is_dir() else "has no megatron/training"
        yield Line(
            _WHAT,
            "problem",
            f"MEGATRON_LM_PATH={path} {what}: ms-swift {swift} fails with No module named 'megatron.training'",
            clone,
            "missing-module",
        )
        return
    there = software.megatron_core_version
    numbers = re.search(r"(\d+\.\d+)", wanted)
    if numbers and there and not there.startswith(numbers[1] + "."):
        yield Line(
            _WHAT,
            "problem",
            f"MEGATRON_LM_PATH={path} is Megatron {there}, ms-swift {swift} was written for {wanted}: arguments "
            "and checkpoints of the two differ, which may first show when it saves",
            f"git -C {path} checkout {wanted}",
            "version-mismatch",
        )
        return
    yield from _imported(target, software)


def _imported(target: Target, software: Software) -> Iterator[Line]:
    core, training, pip = (
        software.megatron_core,
        software.megatron_training,
        software.version("megatron-core"),
    )
    if core is None:
        wanted = "'megatron-core==0.16.1'" if target.launcher == "megatron" else "megatron-core"
        yield Line(
            _WHAT,
            "problem",
            "No module named 'megatron.core' in CMD's Python",
            f"{software.executable} -m pip install {wanted}",
            "missing-module",
        )
        return
    tree = str(Path(core).parent.parent)
    said = f"megatron.core {software.megatron_core_version} of {tree}"
    wants_training = _wants_training(target)
    if wants_training and training is None:
        yield Line(
            _WHAT,
            "problem",
            f"{said}: No module named 'megatron.training', which no wheel has",
            "git clone -b "
            f"core_v{software.megatron_core_version} https://github.com/NVIDIA/Megatron-LM, its folder first in PYTHONPATH",
            "missing-module",
        )
    elif (
        training is not None and Path(training).parent != Path(core).parent and target.launcher != "megatron"
    ):
        yield Line(
            _WHAT,
            "problem",
            f"{said}, but megatron.training comes from {Path(training).parent.parent}: two trees in one job",
            f"PYTHONPATH={Path(training).parent.parent}, or `{software.executable} -m pip uninstall megatron-core`",
            "version-mismatch",
        )
    elif pip and software.megatron_core_version and not pip.startswith(software.megatron_core_version):
        yield Line(
            _WHAT,
            "problem" if target.launcher == "megatron" else "note",
            f"{said} hides the installed megatron-core {pip}",
            "take that folder out of PYTHONPATH" if target.launcher == "megatron" else "",
            "version-mismatch" if target.launcher == "megatron" else "",
        )
    else:
        yield Line(_WHAT, "ok", said + ("" if training is None else ", with megatron.training"))


def _wants_training(target: Target) -> bool:
    return any(name.startswith("megatron.training") for name in target.imports or ())
