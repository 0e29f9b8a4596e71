"""Whether the software that CMD will use fits together: versions, what really loads, Megatron, CUDA,
compilers.

All of it is asked of CMD's own Python, in other processes; diag imports none of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from diag.launch.launchers.command.variables import split_environment
from diag.preflight.line import Line
from diag.preflight.software import compilers, cuda, fits
from diag.preflight.software.ask import Load, inventory, load
from diag.preflight.software.concern import is_megatron, used_by
from diag.preflight.software.facts import DISTS, MODULES, Software, parse
from diag.preflight.software.loads import judge
from diag.preflight.software.megatron import before, check_megatron
from diag.preflight.software.target import Target, find_target

__all__ = ["check_software"]

_AT_ONCE = 2  # imports of several hundred MiB each, beside a job that may run here
_SUMMARY = (
    "ms-swift", "megatron-core", "mcore-bridge", "transformer-engine", "flash-attn", "apex", "transformers", "trl", "peft",
    "accelerate", "deepspeed", "datasets", "numpy",
)  # fmt: skip
# What is really imported: its name, and what to import for it in this order. torch comes first in each, as it
# does in a job. The slow ones first.
_LOADS = {
    "mcore_bridge": ("mcore_bridge",), "vllm": ("vllm",), "megatron.core": ("megatron.core",), "deepspeed": ("deepspeed",),
    "transformers": ("transformers.modeling_utils",), "transformer_engine": ("transformer_engine.pytorch",),
    "flash_attn": ("flash_attn",), "torchvision": ("torchvision",), "apex": ("apex", "amp_C"), "triton": ("triton",),
    "xformers": ("xformers.ops",), "torchaudio": ("torchaudio",),
}  # fmt: skip
_DIST = {"flash_attn": "flash-attn", "transformer_engine": "transformer-engine", "mcore_bridge": "mcore-bridge",
         "megatron.core": "megatron-core"}  # fmt: skip
# other packages import them by themselves
_LIGHT = frozenset(["flash_attn", "transformer_engine", "apex", "triton", "torchvision"])
_PROGRAMS = {
    "megatron": "ms-swift",
    "swift": "ms-swift",
    "torchrun": "torch",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
}


def check_software(
    command: Sequence[str], env: Mapping[str, str] | None = None, deadline: float = 60.0, loads: bool = True
) -> Iterator[Line]:
    """`deadline` is of each import; without `loads` nothing is imported, and what only that can tell is not
    checked. Of a Python that is not known to be CMD's nothing is called ok."""
    words, environment = split_environment(command, os.environ if env is None else env)
    target = find_target(words, environment)
    for line in _lines(target, deadline, loads=loads):
        yield replace(line, status="note") if line.status == "ok" and not target.is_of_command else line


def _lines(target: Target, deadline: float, *, loads: bool) -> Iterator[Line]:
    if target.missing_program:
        package = _PROGRAMS.get(target.missing_program.rpartition("/")[2])
        yield Line(
            "software",
            "problem",
            f"`{target.missing_program}` of CMD is not found on PATH",
            f"pip install {package}, or activate its environment"
            if package
            else "see PATH, or activate its environment",
            "missing-module",
        )
        return
    if target.unfit:
        yield Line(
            "software", "not checked", f"{target.unfit}: {target.python} is looked at instead", target.remedy
        )
    early = before(target, "3.")
    answer = inventory(target, MODULES, DISTS, early)
    if isinstance(answer, str):
        yield Line(
            "software",
            "not checked",
            f"{target.python} ({target.found_by}) {answer}",
            f"see `{target.python} -c pass`",
        )
        return
    software = parse(answer)
    if early and not before(target, software.version("ms-swift")):
        early = []
        answer = inventory(target, MODULES, DISTS)
        software = software if isinstance(answer, str) else parse(answer)
    yield from _versions(target, software)
    if not software.has("torch"):
        if target.launcher in _PROGRAMS or "torch" in (used_by(target, software) or ()):
            remedy = f"{software.executable} -m pip install torch, or activate the job's environment"
            yield Line("software", "problem", f"no torch in {software.executable}", remedy, "missing-module")
    elif loads:
        yield from _really(target, software, early, deadline)
    else:
        yield from cuda.check_driver(software, {}, cuda.nvml_cuda())
        yield Line(
            "loads",
            "not checked",
            "nothing was imported (--no-load)",
            "without --no-load what is installed is really loaded",
        )


def _versions(target: Target, software: Software) -> Iterator[Line]:
    used = used_by(target, software)
    yield from _summary(target, software)
    yield from _fewer_notes([*fits.clashes(software, used), *fits.unmet(software, used)])
    yield from check_megatron(target, software)
    if _lacks_te(target, software):
        yield Line(
            "software",
            "problem",
            f"ms-swift {software.version('ms-swift')} imports Transformer Engine in every rank, and it is not "
            "installed: No module named 'transformer_engine'",
            f"{software.executable} -m pip install --no-build-isolation 'transformer-engine[pytorch]'",
            "missing-module",
        )


def _really(target: Target, software: Software, early: Sequence[str], deadline: float) -> Iterator[Line]:
    """What only an import tells."""
    used = used_by(target, software)
    compiles = bool(compilers.compiles(target, software))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asking = pool.submit(load, target, "torch", ["torch"], deadline, early, compiles)
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
    yield from _said_of(loads, software, torch)
    if torch.went_well:
        yield from cuda.check_driver(software, torch.torch, cuda.nvml_cuda())
        yield from cuda.check_copies(software, torch.torch, target.environment)
        yield from compilers.check_compilers(target, software, torch.torch)


def _lacks_te(target: Target, software: Software) -> bool:
    return (
        target.launcher == "megatron" and software.swift_has_bridge and not software.has("transformer_engine")
    )


def _summary(target: Target, software: Software) -> Iterator[Line]:
    build = (
        f"CUDA {software.torch_cuda}" if software.torch_cuda else "ROCm" if software.is_rocm else "no CUDA"
    )
    there = [f"torch {software.version('torch') or '?'} ({build})"] if software.has("torch") else ["no torch"]
    for kind in ("cudnn", "nccl"):
        name = next((name for name in software.installed if name.startswith(f"nvidia-{kind}-cu")), "")
        there += (
            [f"{kind.replace('cudnn', 'cuDNN').replace('nccl', 'NCCL')} {software.installed[name]}"]
            if name
            else []
        )
    there += [f"{name} {software.version(name)}" for name in ("triton", *_SUMMARY) if software.version(name)]
    yield Line(
        "software",
        "ok" if software.has("torch") else "note",
        f"Python {software.python}, {software.executable} ({target.found_by}): {', '.join(there)}",
    )


def _fewer_notes(lines: Sequence[Line]) -> Iterator[Line]:
    """Notes in one line: a requirement that CMD is not known to touch is rarely worth more."""
    notes = [line for line in lines if line.status == "note"]
    yield from (line for line in lines if line.status != "note")
    if len(notes) == 1:
        yield notes[0]
    elif notes:
        more = f"; and {len(notes) - 3} more" if len(notes) > 3 else ""
        yield Line(
            "versions",
            "note",
            "; ".join(line.said for line in notes[:3]) + more,
            "see `pip check` in that environment",
        )
    if not lines:
        yield Line(
            "versions",
            "ok",
            "what these packages require of each other is met, and no pair is known to break",
        )


def _asked(
    target: Target, software: Software, used: Collection[str] | None
) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """What is imported: name, modules, and whether CMD is known to use it."""
    bridge = target.launcher == "megatron" and software.swift_has_bridge
    for name, modules in _LOADS.items():
        concerns = name in _LIGHT if used is None else _DIST.get(name, name) in used
        if not (concerns or name in _LIGHT):
            continue
        if name == "mcore_bridge":  # it brings megatron.core and transformers
            there = bridge and not _lacks_te(target, software)
        elif name == "apex":  # PyPI has another package of this name, which the versions told
            there = software.has(name) and not software.version(name).startswith("0.9.10")
        elif name == "megatron.core":
            there = (
                software.megatron_core is not None
                and is_megatron(target)
                and not (bridge and not _lacks_te(target, software))
            )
        else:
            there = software.has(name) and not (
                name == "transformers" and bridge and not _lacks_te(target, software)
            )
        if there:
            yield name, tuple(one for one in modules if one != "amp_C" or software.has(one)), concerns


def _said_of(loads: Sequence[tuple[Load, bool]], software: Software, torch: Load) -> Iterator[Line]:
    well, seen = [], set()
    for one, concerns in loads:
        verdict = judge(one, software, torch.torch.get("cxx11_abi"))
        if verdict is None:
            well.append(one.name)
        elif verdict.said not in seen:
            seen.add(verdict.said)
            status = "not checked" if not verdict.id else "problem" if concerns else "note"
            yield Line(
                "loads", status, verdict.said, verdict.remedy, verdict.id if status == "problem" else ""
            )
    if well:
        yield Line("loads", "ok", f"{', '.join(well)} can be imported")
