"""Whether the software that CMD will use fits together: versions, what really loads, Megatron, CUDA,
compilers.

All of it is asked of CMD's own Python, in other processes; diag imports none of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from diag.launch.launchers.command import read_command
from diag.launch.launchers.command.names import split_environment
from diag.preflight.line import Line, line, table
from diag.preflight.software import cuda, fits
from diag.preflight.software.ask import Load, Software, inventory, load, parse, stop_asking
from diag.preflight.software.fits import before, check_megatron
from diag.preflight.software.known import check_known
from diag.preflight.software.loads import judge
from diag.preflight.software.target import Target, find_target, is_megatron, used_by

__all__ = ["check_software", "stop_asking"]

_AT_ONCE = 2  # imports of several hundred MiB each, while a job may run here


def check_software(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    deadline: float = 60.0,
    loads: bool = True,
    swift_version: str = "",
) -> Iterator[Line]:
    """`deadline` is of each import; without `loads` nothing is imported, and what only that shows is not
    checked. Of a Python that is not known to be CMD's nothing is called ok. CMD's flags are held against
    `swift_version` where it is given."""
    env = os.environ if env is None else env
    words, environment = split_environment(command, env)
    target, installed = find_target(words, environment), Installed()
    for one in _lines(target, installed, deadline, loads=loads):
        yield replace(one, status="note") if one.status == "ok" and not target.is_of_command else one
    if not command:
        return
    from diag.preflight.software.trainer import find_trainer  # much to load where there are no flags
    from diag.preflight.software.trainer_flags import call_of, check_flags

    read = read_command(command, env)
    call = call_of(read)
    if call is not None:
        yield from check_flags(call, find_trainer(call, read, target, installed.software, swift_version))


@dataclass(slots=True)
class Installed:
    """What CMD's Python has, once it has answered."""

    software: Software | None = None


def _lines(target: Target, installed: Installed, deadline: float, *, loads: bool) -> Iterator[Line]:
    if target.missing_program:
        package = table("versions")["programs"].get(target.missing_program.rpartition("/")[2])
        key = f"software.{'' if package else 'unknown-'}program-missing"
        yield line(key, program=target.missing_program, package=package)
        return
    if target.unfit:
        yield line("software.other-python", target=target)
    early = before(target, "3.")
    # Where no command was given only torch is sure to be asked for, and its import takes most of the time.
    ahead = None if not loads or target.words else _ahead(target, deadline, early)
    answer = inventory(target, early)
    if isinstance(answer, str):
        yield line("software.no-answer", target=target, why=answer)
        return
    software = parse(answer)
    if early and not before(target, software.version("ms-swift")):
        early, ahead = [], None
        answer = inventory(target)
        software = software if isinstance(answer, str) else parse(answer)
    installed.software = software
    yield from _versions(target, software)
    if not software.has("torch"):
        if target.launcher in table("versions")["programs"] or "torch" in (used_by(target) or ()):
            yield line("software.no-torch", software=software)
    elif loads:
        yield from _really(target, software, early, deadline, ahead)
    else:
        yield from cuda.check_driver(software, {}, cuda.nvml_cuda())
        yield line("loads.not-asked")


def _versions(target: Target, software: Software) -> Iterator[Line]:
    used = used_by(target)
    yield _summary(target, software)
    yield from _fewer_notes([*fits.clashes(software, used), *fits.unmet(software, used)])
    yield from check_known(target, software, used)
    yield from check_megatron(target, software)
    if _uses_bridge(target, software) and not software.has("transformer_engine"):
        yield line("software.no-te", version=software.version("ms-swift"), software=software)


def _ahead(target: Target, deadline: float, early: Sequence[str]) -> Future[Load]:
    """The import of torch, which a thread begins at once."""
    asking: Future[Load] = Future()

    def ask() -> None:
        try:
            asking.set_result(load(target, "torch", ["torch"], deadline, early))
        except BaseException as error:
            asking.set_exception(error)

    threading.Thread(target=ask, daemon=True, name="diag-torch").start()
    return asking


def _really(
    target: Target,
    software: Software,
    early: Sequence[str],
    deadline: float,
    ahead: Future[Load] | None,
) -> Iterator[Line]:
    """What only an import shows. `ahead`: that of torch, where it was begun."""
    used = used_by(target)
    builds = _uses_bridge(target, software) and not software.has("transformer_engine")
    compiles = builds or bool(cuda.compiles(target, software))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asking = ahead or pool.submit(load, target, "torch", ["torch"], deadline, early, compiles)
        others = [
            (pool.submit(load, target, name, ["torch", *modules], deadline, early), concerns)
            for name, modules, concerns in _asked(target, software, used)
        ]
        torch = asking.result()
        if not torch.went_well:  # then nothing else loads, and all would say the same
            for one, _ in others:
                one.cancel()
            others = []
        loads = [(torch, True), *((one.result(), concerns) for one, concerns in others)]
    yield from _load_lines(loads, software, torch)
    if torch.went_well:
        yield from cuda.check_driver(software, torch.torch, cuda.nvml_cuda())
        yield from cuda.check_copies(software, torch.torch, target.environment)
        yield from cuda.check_compilers(target, software, torch.torch)
        if builds:
            yield from cuda.check_build(
                target, software, torch.torch, "Transformer Engine is compiled when it is installed"
            )


def _uses_bridge(target: Target, software: Software) -> bool:
    """Whether each rank will import mcore_bridge, and with it Transformer Engine."""
    return target.launcher == "megatron" and software.swift_has_bridge


def _summary(target: Target, software: Software) -> Line:
    cuda = f"CUDA {software.torch_cuda}" if software.torch_cuda else "ROCm" if software.is_rocm else "no CUDA"
    with_torch = software.has("torch")
    there = [f"torch {software.version('torch') or '?'} ({cuda})" if with_torch else "no torch"]
    for kind, name in (("cudnn", "cuDNN"), ("nccl", "NCCL")):
        wheels = (each for each in software.installed if each.startswith(f"nvidia-{kind}-cu"))
        there += [f"{name} {software.installed[wheel]}" for wheel in list(wheels)[:1]]
    names = table("versions")["summary"].split()
    there += [f"{name} {software.version(name)}" for name in names if software.version(name)]
    key = f"software.summary{'' if with_torch else '-without-torch'}"
    return line(key, software=software, target=target, versions=", ".join(there))


def _fewer_notes(lines: Sequence[Line]) -> Iterator[Line]:
    """Notes in one line: a requirement that CMD is not known to touch is rarely worth more."""
    notes = [one for one in lines if one.status == "note"]
    yield from (one for one in lines if one.status != "note")
    if len(notes) == 1:
        yield notes[0]
    elif notes:
        more = [f"and {len(notes) - 3} more"] if len(notes) > 3 else []
        yield line("software.several-notes", notes="; ".join([*(one.said for one in notes[:3]), *more]))
    if not lines:
        yield line("software.versions-fit")


def _asked(
    target: Target, software: Software, used: Collection[str] | None
) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """What is imported: name, modules, and whether CMD is known to use it."""
    bridge = _uses_bridge(target, software) and software.has("transformer_engine")
    there = {
        "mcore_bridge": bridge,  # it brings megatron.core and transformers
        # PyPI has another package of this name, which the versions have shown
        "apex": software.has("apex") and not software.version("apex").startswith("0.9.10"),
        "megatron.core": software.megatron_core is not None and is_megatron(target) and not bridge,
        "transformers": software.has("transformers") and not bridge,
    }
    names = {**table("loads")["distributions"], "megatron.core": "megatron-core"}
    for name, entry in table("loads")["imports"].items():
        light = entry.get("light", False)
        concerns = light if used is None else names.get(name, name) in used
        if (concerns or light) and there.get(name, software.has(name)):
            modules = tuple(one for one in entry["modules"] if one != "amp_C" or software.has(one))
            yield name, modules, concerns


def _load_lines(loads: Sequence[tuple[Load, bool]], software: Software, torch: Load) -> Iterator[Line]:
    well, seen = [], set()
    for one, concerns in loads:
        verdict = judge(one, software, torch.torch.get("cxx11_abi"))
        if verdict is None:
            well.append(one.name)
        elif verdict.said not in seen:
            seen.add(verdict.said)
            yield verdict.as_note(unless=concerns)
    if well:
        yield line("loads.fine", names=", ".join(well))
