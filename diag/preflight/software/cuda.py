"""Whether CUDA fits: the driver, torch's runtime, and copies of cuDNN that come before torch's own; pure but
for reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diag.preflight.line import Line
from diag.preflight.software.facts import Software

_WHAT = "CUDA"


def nvml_cuda() -> tuple[int | None, int]:
    """The newest CUDA that the driver can run, as NVML has it (12040), and the number of GPUs; None where
    NVML is not there."""
    import pynvml

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
    """`torch` is what the loaded torch said. libcuda knows better than NVML: it may be that of a
    compatibility package."""
    version, cuda = software.version("torch"), software.torch_cuda
    number, gpus = nvml
    if software.is_rocm or not version:
        return
    if cuda is None:
        if gpus:
            yield Line(
                _WHAT,
                "problem",
                f"torch {version} is a build without CUDA, and NVML shows {gpus} GPUs here",
                f"{software.executable} -m pip install --force-reinstall 'torch=={version.partition('+')[0]}' --index-url "
                f"https://download.pytorch.org/whl/cu{_tag(number)}",
                "cuda-version-mismatch",
            )
        else:
            yield Line(_WHAT, "note", f"torch {version} is a build without CUDA")
        return
    number = torch.get("driver_cuda") or number
    if number is None:
        yield Line(
            _WHAT,
            "not checked",
            f"torch is for CUDA {cuda}; no NVIDIA driver here to hold it against",
            "run `diag doctor` where the job will run; a container needs the utility and compute capabilities",
        )
        return
    driver = (number // 1000, number % 1000 // 10)
    wanted = tuple(int(part) for part in cuda.split(".")[:2])
    said = f"torch {version} is for CUDA {cuda}, the driver runs up to CUDA {driver[0]}.{driver[1]}"
    if driver[0] < wanted[0]:
        yield Line(
            _WHAT,
            "problem",
            f"{said}: it sees no GPU (The NVIDIA driver on your system is too old)",
            f"a driver for CUDA {wanted[0]}, or {software.executable} -m pip install --force-reinstall 'torch' --index-url "
            f"https://download.pytorch.org/whl/cu{_tag(number)}",
            "cuda-version-mismatch",
        )
    elif driver < wanted:
        yield Line(
            _WHAT, "note", f"{said}: it works within CUDA {wanted[0]}; what compiles PTX at run time may not"
        )
    else:
        yield Line(_WHAT, "ok", said)


def _tag(number: int | None) -> str:
    """Of the index of torch's builds; which releases there are is not known here."""
    return {11: "118", 12: "126", 13: "130"}.get((number or 12000) // 1000, "126")


def check_copies(
    software: Software, torch: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[Line]:
    """A cuDNN in LD_LIBRARY_PATH of another version than torch's wheel: its parts are loaded one by one, by
    name."""
    if "cudnn_error" in torch:
        yield Line(
            _WHAT,
            "problem",
            str(torch["cudnn_error"]).strip().splitlines()[0][:200],
            _unset(environment, "cudnn"),
            "cuda-version-mismatch",
        )
        return
    own = next(
        (
            version
            for name, version in software.installed.items()
            if re.fullmatch(r"nvidia-cudnn-cu\d+", name)
        ),
        "",
    )
    if not own:
        return  # a torch of conda or of NVIDIA's containers has the system's
    for path in copies(environment.get("LD_LIBRARY_PATH", ""), "libcudnn"):
        there = _numbers(path.resolve().name)
        if there and _major(there) == _major(own) and there.split(".")[:3] != own.split(".")[:3]:
            yield Line(
                _WHAT,
                "problem",
                f"two cuDNN: torch brings {own}, LD_LIBRARY_PATH has {there} ({path}); parts of both in one process "
                "fail with CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED in the first forward",
                _unset(environment, "cudnn"),
                "cuda-version-mismatch",
            )
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


def _major(version: str) -> str:
    return version.partition(".")[0]


def _unset(environment: Mapping[str, str], name: str) -> str:
    found = copies(environment.get("LD_LIBRARY_PATH", ""), f"lib{name}")
    folder = f"{found[0].parent} " if found else "the folder "
    return f"take {folder}out of LD_LIBRARY_PATH (`unset LD_LIBRARY_PATH`), for all ranks"
