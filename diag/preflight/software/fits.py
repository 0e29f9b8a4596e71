"""Which versions are known to break together, which requirements of the packages themselves are not met, and which Megatron
CMD will import; pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from diag.knowledge.versions import fits
from diag.preflight.line import Line, line, table
from diag.preflight.software.ask import Software
from diag.preflight.software.target import Target, is_megatron

_ABSENT = "absent"
# What only an extra asks for: nearly all of the hundreds of requirements of transformers and of datasets, and to parse
# them took more time than all else here.
_OF_EXTRA = re.compile(r"""\bextra *== *(['"])[^'"]+\1""")


def clashes(software: Software, used: Collection[str] | None) -> Iterator[Line]:
    used, known = used or (), table("versions")
    for clash in known["clashes"]:
        when = clash["when"].items()
        if not all(_holds(software, name, wanted) for name, wanted in when):
            continue
        gone = [f"without {name}" for name, wanted in when if wanted == _ABSENT]
        named = (f"{name} {software.version(name)}" for name, wanted in when if wanted != _ABSENT)
        there = " ".join([" with ".join(named), *gone])
        pip = f"{software.executable} -m pip install {clash['install']}" if "install" in clash else ""
        install = "; ".join(filter(None, (pip, clash.get("otherwise"))))
        found = line(f"software.clash{'-missing' if gone else ''}", there=there, clash=clash, install=install)
        yield found.as_note(unless=all(name in used for name in clash["of"]))
    parts = {
        name: software.version(name) for name in known["transformer-engine"].split() if software.version(name)
    }
    releases = {_base(version) for version in parts.values()}
    if len(releases) > 1:
        named = (f"{name} {version}" for name, version in parts.items())
        found = line("software.te-parts", parts=", ".join(named), software=software, newest=max(releases))
        yield found.as_note(unless="transformer-engine" in used)


def _holds(software: Software, name: str, wanted: str) -> bool:
    version = software.version(name)
    if wanted == _ABSENT:
        return not version and not software.has(name.replace("-", "_"))
    return bool(version) and fits(version, wanted) is True


def _base(version: str) -> str:
    try:
        return Version(version).base_version
    except InvalidVersion:
        return version


def unmet(software: Software, used: Collection[str] | None) -> Iterator[Line]:
    """Requirements in the packages' own metadata, of the packages that matter to training. As `pip check`,
    but only of these."""
    used, checked = used or (), table("versions")["distributions"].split()
    for name, texts in software.requires.items():
        if name == "torchvision":  # it is loaded, and reports the same with what follows
            continue
        for wanted in filter(None, (_requirement(text, software.markers) for text in texts)):
            target = canonicalize_name(wanted.name)
            version, known = software.version(target), target in checked or target.startswith("nvidia-")
            if version and fits(version, str(wanted.specifier)) is not False:
                continue
            if not version and not known:
                continue  # gradio and the like: what does need them fails when it is imported
            short, whose = f"{wanted.name}{wanted.specifier}", f"{name} {software.version(name)}"
            key = f"software.unmet{'' if version else '-missing'}"
            found = line(key, whose=whose, wanted=short, version=version, software=software)
            yield found.as_note(unless=name in used and known and (target in used or name == "torch"))


def _requirement(text: str, markers: Mapping[str, str]) -> Requirement | None:
    """None where it does not hold here: another platform, or an extra that was not necessarily asked for."""
    marker = text.partition(";")[2]
    if _OF_EXTRA.search(marker) and " or " not in marker:
        return None
    try:
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({**markers, "extra": ""}):
            return wanted
    except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
        pass
    return None


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
    core, training = software.megatron_core, software.megatron_training
    by_swift = target.launcher == "megatron"
    if core is None:
        wanted = "'megatron-core==0.16.1'" if by_swift else "megatron-core"
        return line("software.megatron-no-core", software=software, core=wanted)
    version, pip = software.megatron_core_version, software.version("megatron-core")
    said = f"megatron.core {version} of {Path(core).parent.parent}"
    other = Path(training).parent.parent if training is not None else None
    if training is None and any(name.startswith("megatron.training") for name in target.imports or ()):
        key = "no-training"
    elif other is not None and other != Path(core).parent.parent and not by_swift:
        key = "two-trees"
    elif pip and version and not pip.startswith(version):
        key = "hides-pip" if by_swift else "before-pip"
    else:
        key = "fits"
        said += "" if training is None else ", with megatron.training"
    return line(f"software.megatron-{key}", said=said, other=other, software=software, pip=pip)
