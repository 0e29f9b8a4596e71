"""What a compile at run time needs: a problem where CMD is known to compile, else nothing is said."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diag.preflight.line import Line
from diag.preflight.software.facts import Software
from diag.preflight.software.target import Target

_WHAT = "compilers"


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
    needs_gcc = why or (software.torch_cuda and software.has("triton"))
    if not needs_gcc:
        return
    path = target.environment.get("PATH")
    gcc = shutil.which(target.environment.get("CC", "gcc").split(" ")[0], path=path) or shutil.which(
        "cc", path=path
    )
    if gcc is None:
        yield Line(
            _WHAT,
            "problem" if why else "note",
            f"no C compiler on PATH; {why or 'Triton compiles with one at its first kernel'} (Failed to find C compiler)",
            "apt-get install build-essential, or set CC",
            "missing-header" if why else "",
        )
    if not why:
        return
    quiet = True
    for line in _toolchain(target, software, torch, why):
        quiet = False
        yield line
    if quiet and gcc is not None:
        yield Line(_WHAT, "ok", f"{why}: nvcc, g++ and ninja are there")


def _toolchain(target: Target, software: Software, torch: Mapping[str, Any], why: str) -> Iterator[Line]:
    env = target.environment
    path = env.get("PATH")
    if shutil.which("ninja", path=path) is None and not (Path(target.python).parent / "ninja").exists():
        yield Line(
            _WHAT,
            "problem",
            f"{why}, and there is no ninja",
            f"{software.executable} -m pip install ninja",
            "missing-module",
        )
    cuda = software.torch_cuda
    if cuda is None:
        return
    home = torch.get("cuda_home") or env.get("CUDA_HOME") or ""
    nvcc = Path(home) / "bin" / "nvcc" if home else None
    if nvcc is None or not nvcc.is_file():
        yield Line(
            _WHAT,
            "problem",
            f"{why}, and there is no nvcc"
            + (f" in CUDA_HOME={home}" if home else " (CUDA_HOME does not exist)"),
            f"install the toolkit of CUDA {cuda} and export CUDA_HOME=/usr/local/cuda-{cuda}, or use an image -devel",
            "missing-header",
        )
        return
    # CUDA 13.0: "Cuda compilation tools, release 13.0, V13.0.88"
    toolkit = _first(r"release (\d+\.\d+)", _said([str(nvcc), "--version"]))
    if toolkit and toolkit.split(".")[0] != cuda.split(".")[0]:
        yield Line(
            _WHAT,
            "problem",
            f"{why}; {nvcc} is CUDA {toolkit}, torch is for CUDA {cuda} (The detected CUDA version mismatches)",
            f"export CUDA_HOME=/usr/local/cuda-{cuda} with the toolkit of CUDA {cuda}",
            "cuda-version-mismatch",
        )
    compiler = shutil.which(env.get("CXX", "g++").split(" ")[0], path=path)
    version = _first(r"^(\d+(?:\.\d+)*)", _said([compiler, "-dumpfullversion"])) if compiler else ""
    bounds = (torch.get("gcc_bounds") or {}).get(toolkit)
    if compiler is None:
        yield Line(_WHAT, "problem", f"{why}, and there is no g++", "apt-get install g++", "missing-header")
    elif version and bounds and not bounds[0] <= [int(part) for part in version.split(".")] < bounds[1]:
        newest = bounds[1][0] - 1 if bounds[1][1:] in ([], [0]) else bounds[1][0]
        yield Line(
            _WHAT,
            "problem",
            f"{why}; g++ {version} does not go with nvcc {toolkit} (unsupported GNU version)",
            f"apt-get install g++-{newest}; export CC=gcc-{newest} CXX=g++-{newest}",
            "version-mismatch",
        )


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=False, errors="replace"
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""
