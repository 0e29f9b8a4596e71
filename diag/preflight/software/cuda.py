"""Whether CUDA fits: the driver, torch's runtime, and copies of cuDNN that come before torch's own; pure but
for reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diag.preflight.line import Line, line
from diag.preflight.software.ask import Software


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
    """`torch` is what the loaded torch reported. libcuda knows better than NVML: it may be that of a
    compatibility package."""
    version, cuda = software.version("torch"), software.torch_cuda
    number, gpus = nvml
    if software.is_rocm or not version:
        return
    if cuda is None:
        release = version.partition("+")[0]
        values = {
            "version": version,
            "gpus": gpus,
            "software": software,
            "release": release,
            "tag": _tag(number),
        }
        yield line(f"software.cuda-build-{'missing' if gpus else 'none'}", **values)
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
