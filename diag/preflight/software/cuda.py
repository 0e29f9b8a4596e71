"""Whether CUDA and compilers fit: the driver, torch's runtime, copies of cuDNN that come before torch's own, and what a
compile at run time needs (a problem where CMD is known to compile, else there is no line)."""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diag.preflight.line import Line, line
from diag.preflight.run_command import CommandFailed, run_command
from diag.preflight.software.ask import Software
from diag.preflight.software.target import Target

_SYSTEM = ("/usr/include", "/usr/include/x86_64-linux-gnu")
_OF_ALL = 11  # the gcc that every CUDA from 11.4 on takes


def nvml_cuda() -> tuple[int | None, int]:
    """The newest CUDA that the driver can run, as NVML has it (12040), and the number of GPUs; None where
    NVML is not there."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None, 0
    import pynvml  # much to load where there is no NVML

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None, 0
    try:
        return int(pynvml.nvmlSystemGetCudaDriverVersion_v2()), int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return None, 0
    finally:
        pynvml.nvmlShutdown()


def check_driver(
    software: Software, torch: Mapping[str, Any], nvml: tuple[int | None, int]
) -> Iterator[Line]:
    """`torch` is what the loaded torch reported. libcuda knows better than NVML: it may be that of a
    compatibility package."""
    version, cuda = software.version("torch"), software.torch_cuda
    number, gpus = nvml
    if software.is_rocm or not version:
        return
    if cuda is None:
        key = f"software.cuda-build-{'missing' if gpus else 'none'}"
        values = {"version": version, "release": version.partition("+")[0], "tag": _tag(number)}
        yield line(key, gpus=gpus, software=software, **values)
        return
    number = torch.get("driver_cuda") or number
    if number is None:
        yield line("software.cuda-no-driver", cuda=cuda)
        return
    driver, wanted = (number // 1000, number % 1000 // 10), tuple(int(part) for part in cuda.split(".")[:2])
    said = f"torch {version} is for CUDA {cuda}, the driver runs up to CUDA {driver[0]}.{driver[1]}"
    key = "old" if driver[0] < wanted[0] else "minor" if driver < wanted else "fits"
    yield line(f"software.cuda-driver-{key}", said=said, major=wanted[0], software=software, tag=_tag(number))


def _tag(number: int | None) -> str:
    """Of the index of torch's builds; which releases there are is not known here."""
    return {11: "118", 12: "126", 13: "130"}.get((number or 12000) // 1000, "126")


def check_copies(
    software: Software, torch: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[Line]:
    """A cuDNN in LD_LIBRARY_PATH of another version than torch's wheel: its parts are loaded one by one, by
    name."""
    found = copies(environment.get("LD_LIBRARY_PATH", ""), "libcudnn")
    folder = str(found[0].parent) if found else "the folder"
    if "cudnn_error" in torch:
        error = str(torch["cudnn_error"]).strip().splitlines()[0][:200]
        yield line("software.cudnn-error", error=error, folder=folder)
        return
    wheels = (name for name in software.installed if re.fullmatch(r"nvidia-cudnn-cu\d+", name))
    own = software.version(next(wheels, ""))
    if not own:
        return  # a torch of conda or of NVIDIA's containers has the system's
    for path in found:
        there = _numbers(path.resolve().name)
        same_major = there.partition(".")[0] == own.partition(".")[0]
        if there and same_major and there.split(".")[:3] != own.split(".")[:3]:
            yield line("software.cudnn-twice", own=own, there=there, path=path, folder=folder)
            return


def copies(search: str, name: str) -> Sequence[Path]:
    """The first file NAME.so.N of each folder in a search path, in its order."""
    found = []
    for folder in search.split(":"):
        try:
            files = sorted(Path(folder).glob(f"{name}.so.[0-9]*")) if folder else []
        except OSError:
            continue
        found += files[:1]
    return found


def _numbers(name: str) -> str:
    """
    >>> _numbers("libcudnn.so.9.1.0"), _numbers("libcudnn.so.9")
    ('9.1.0', '')
    """
    found = re.search(r"\.so\.(\d+\.\d+\.\d+)", name)
    return found[1] if found else ""


def compiles(target: Target, software: Software) -> str:
    """Why CMD will compile CUDA code when it starts; "" where it is not known to.

    DeepSpeed builds CPUAdam (offload of the optimizer) and FusedAdam (an optimizer in its own configuration)
    at first use.
    """
    config = target.has("--deepspeed", "--deepspeed_config")
    if config is None or not software.version("deepspeed"):
        return ""
    text = config
    with contextlib.suppress(OSError):
        if config.endswith(".json") and Path(config).is_file():
            text = Path(config).read_text(errors="replace")[:100000]
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
    bounds = (torch.get("gcc_bounds") or {}).get(toolkit)
    newest = _OF_ALL
    if bounds:
        newest = bounds[1][0] - 1 if bounds[1][1:] in ([], [0]) else bounds[1][0]
    if compiler is None:
        yield line("software.no-cxx", why=why, newest=newest)
        return
    version = _first(r"^(\d+(?:\.\d+)*)", [compiler, "-dumpfullversion", "-dumpversion"])
    numbers = [int(part) for part in version.split(".")] if version else []
    if bounds and numbers and not bounds[0] <= numbers < bounds[1]:
        key = f"software.{'old' if numbers < bounds[0] else 'new'}-cxx"
        yield line(key, why=why, version=version, toolkit=toolkit, newest=newest)


def check_build(target: Target, software: Software, torch: Mapping[str, Any], why: str) -> Iterator[Line]:
    """Whether a package with CUDA code of its own could be built here."""
    if software.torch_cuda is None:
        return
    yield from _toolchain(target, software, torch, why)
    home = str(torch.get("cuda_home") or target.environment.get("CUDA_HOME") or "/usr/local/cuda")
    if not any((Path(folder) / "cudnn.h").is_file() for folder in _include_folders(target.environment, home)):
        wheel = any(re.fullmatch(r"nvidia-cudnn-cu\d+", name) for name in software.installed)
        yield line("software.no-cudnn-header", why=why, home=home, remedy=_cudnn_remedy(target, wheel=wheel))


def _include_folders(env: Mapping[str, str], home: str) -> list[str]:
    # torch/utils/cpp_extension.py: CUDNN_HOME, CUDNN_PATH; gcc: CPATH, CPLUS_INCLUDE_PATH
    own = [f"{env[name]}/include" for name in ("CUDNN_HOME", "CUDNN_PATH") if env.get(name)]
    paths = [env.get(name, "") for name in ("CPATH", "CPLUS_INCLUDE_PATH")]
    listed = [folder for path in paths for folder in path.split(":") if folder]
    return [*own, *listed, f"{home}/include", *_SYSTEM]


def _cudnn_remedy(target: Target, *, wheel: bool) -> str:
    if wheel:  # it has the headers, too
        path = f'$({target.python} -c "import nvidia.cudnn as m; print(list(m.__path__)[0])")'
        return f"export CUDNN_PATH={path}; export CPATH=$CUDNN_PATH/include:$CPATH"
    return "conda install -c nvidia cudnn; export CUDNN_PATH=$CONDA_PREFIX CPATH=$CONDA_PREFIX/include:$CPATH"


def _first(pattern: str, command: list[str]) -> str:
    """What the pattern finds first in what the command prints; "" where it finds nothing."""
    try:
        found = re.search(pattern, run_command(command).stdout, re.MULTILINE)
    except CommandFailed:
        return ""
    return found[1] if found else ""
