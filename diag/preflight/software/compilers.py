"""What a compile at run time needs: a problem where CMD is known to compile, else there is no line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diag.preflight.line import Line, line
from diag.preflight.run_command import CommandFailed, run_command
from diag.preflight.software.ask import Software
from diag.preflight.software.target import Target


def compiles(target: Target, software: Software) -> str:
    """Why CMD will compile CUDA code when it starts; "" where it is not known to.

    DeepSpeed builds CPUAdam (offload of the optimizer) and FusedAdam (an optimizer in its own configuration)
    at first use.
    """
    config = target.has("--deepspeed", "--deepspeed_config")
    if config is None or not software.version("deepspeed"):
        return ""
    text = config
    path = Path(config)
    try:
        if path.suffix == ".json" and path.is_file():
            text = path.read_text(errors="replace")[:100000]
    except OSError:
        pass
    # ms-swift's zero2_offload and zero3_offload; DeepSpeed's configuration: "offload_optimizer": {"device":
    # "cpu", ...}
    if "offload" in config or re.search(r'"offload_optimizer"[^}]{0,500}"device"\s*:\s*"(cpu|nvme)"', text):
        return "DeepSpeed compiles CPUAdam for offload"
    if re.search(r'"optimizer"\s*:\s*\{', text):
        return "DeepSpeed compiles FusedAdam for the optimizer in its configuration"
    return ""


def check_compilers(target: Target, software: Software, torch: Mapping[str, Any]) -> Iterator[Line]:
    why = compiles(target, software)
    if not why and not (software.torch_cuda and software.has("triton")):
        return
    path = target.environment.get("PATH")
    wanted = target.environment.get("CC", "gcc").split(" ")[0]
    gcc = shutil.which(wanted, path=path) or shutil.which("cc", path=path)
    if gcc is None:
        by = why or "Triton compiles with one at its first kernel"
        yield line("software.no-c-compiler", why=by).as_note(unless=bool(why))
    if why:
        lines = list(_toolchain(target, software, torch, why))
        yield from lines
        if not lines and gcc is not None:
            yield line("software.compilers-fit", why=why)


def _toolchain(target: Target, software: Software, torch: Mapping[str, Any], why: str) -> Iterator[Line]:
    env = target.environment
    path = env.get("PATH")
    if shutil.which("ninja", path=path) is None and not (Path(target.python).parent / "ninja").exists():
        yield line("software.no-ninja", why=why, software=software)
    cuda = software.torch_cuda
    if cuda is None:
        return
    home = torch.get("cuda_home") or env.get("CUDA_HOME") or ""
    nvcc = Path(home) / "bin" / "nvcc"
    if not home or not nvcc.is_file():
        where = f" in CUDA_HOME={home}" if home else " (CUDA_HOME does not exist)"
        yield line("software.no-nvcc", why=why, where=where, cuda=cuda)
        return
    # CUDA 13.0: "Cuda compilation tools, release 13.0, V13.0.88"
    toolkit = _first(r"release (\d+\.\d+)", [str(nvcc), "--version"])
    if toolkit and toolkit.split(".")[0] != cuda.split(".")[0]:
        yield line("software.other-toolkit", why=why, nvcc=nvcc, toolkit=toolkit, cuda=cuda)
    yield from _cxx(env, torch, toolkit, why)


def _cxx(env: Mapping[str, str], torch: Mapping[str, Any], toolkit: str, why: str) -> Iterator[Line]:
    """g++, and whether it is one that nvcc takes."""
    compiler = shutil.which(env.get("CXX", "g++").split(" ")[0], path=env.get("PATH"))
    if compiler is None:
        yield line("software.no-cxx", why=why)
        return
    version = _first(r"^(\d+(?:\.\d+)*)", [compiler, "-dumpfullversion"])
    bounds = (torch.get("gcc_bounds") or {}).get(toolkit)
    if version and bounds and not bounds[0] <= [int(part) for part in version.split(".")] < bounds[1]:
        newest = bounds[1][0] - 1 if bounds[1][1:] in ([], [0]) else bounds[1][0]
        yield line("software.other-cxx", why=why, version=version, toolkit=toolkit, newest=newest)


def _first(pattern: str, command: list[str]) -> str:
    """What the pattern finds first in what the command prints; "" where it finds nothing."""
    try:
        found = re.search(pattern, run_command(command).stdout, re.MULTILINE)
    except CommandFailed:
        return ""
    return found[1] if found else ""
