"""What an import that went wrong means, and what to install: from the errors of the loader, Python and the
packages; pure."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

from diag.preflight.line import Line, line, table
from diag.preflight.run_command import CommandFailed, run_command
from diag.preflight.software.ask import Load, Software
from diag.text.units import format_seconds

# ld.so of glibc 2.36, as Python shows it; github.com/Dao-AILab/flash-attention/issues/1644 (torch 2.7.0,
# flash-attn 2.7.4.post1):
#   ImportError: /h/.local/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol:
#     _ZN3c105ErrorC2ENS_14SourceLocationESs   (one line)
_SYMBOL = re.compile(r"(\S+\.so[\w.]*): undefined symbol: (\w+)")
#   ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory
_LIBRARY = re.compile(r"(\S+?\.so[\w.]*): cannot open shared object file")
#   ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /x/flash_attn_2_cuda.so)
_VERSION = re.compile(r"(\S+): version `(GLIBC|GLIBCXX|CXXABI)_([\d.]+)' not found")
#   ModuleNotFoundError: No module named 'megatron.training'
_MODULE = re.compile(r"No module named '([\w.]+)'")
#   ImportError: cannot import name 'HybridCache' from 'transformers' (/x/transformers/__init__.py)
_NAME = re.compile(r"cannot import name '(\w+)' from (?:partially initialized module )?'([\w.]+)'")
# transformer-engine 2.20.2: RuntimeError: Found empty `transformer-engine` meta package installed. Install
# ...
_EMPTY_TE = re.compile("Found empty `transformer-engine` meta package")
# torchvision 0.22.0 on torch 2.13.0: RuntimeError: operator torchvision::nms does not exist
_OPERATOR = re.compile(r"operator (\w+)::\w+ does not exist")
# torch 2.7, torch/backends/cudnn: RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 5, 1) but found
#   runtime version (8, 9, 2)   (one line)
_CUDNN = re.compile("cuDNN version incompatibility")
# deepspeed, op_builder/builder.py: MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA
# op(s)
_NO_CUDA_HOME = re.compile(r"CUDA_HOME (?:does not exist|environment variable is not set)")
# numpy: ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C
#   header, got 88 from PyObject   (one line)
_NUMPY = re.compile(
    r"numpy\.\w+ size changed|compiled using NumPy 1\.x cannot be run in|_ARRAY_API not found"
)
# torch: AssertionError: Torch not compiled with CUDA enabled
_NO_CUDA_BUILD = re.compile("Torch not compiled with CUDA enabled")
# xformers 0.0.30 on torch 2.13.0, a warning on stderr:
#   WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:
#       PyTorch 2.7.0+cu126 with CUDA 1206 (you have 2.13.0+cpu)
_XFORMERS = re.compile(r"xFormers was built for:\s+PyTorch (\S+)")
# Nothing is wrong with the package: it wants what is not there on this machine, or what was hidden from it
# here.
_NEEDS_GPU = re.compile(
    r"libcuda\.so\.1: cannot open|libnvidia-ml\.so|Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device"
    r"|0 active drivers"
)
# Libraries of the CUDA toolkit, with its major version
_TOOLKIT = re.compile(r"lib(?:cudart|cublas|cublasLt|cufft|cusparse|cusolver|nvrtc|curand|cupti)\.so\.(\d+)")
# Libraries that come in wheels of their own, nvidia-NAME-cu12
_OF_WHEEL = re.compile(r"lib(cudnn|nccl|cusparselt|nvshmem|cufile)", re.IGNORECASE)
# Libraries of CUDA that torch brings as wheels: a symbol missing in one means that another copy of another
# version came first.
_CUDA_LIBRARY = re.compile(r"(?:^|/)lib(cu\w+|nvJitLink|nvrtc|nccl)[^/]*\.so")


@dataclass(frozen=True, slots=True)
class _Case:
    """An import, as lines/loads.yaml speaks of it."""

    load: Load
    software: Software
    abi: bool | None  # whether torch was built with the C++11 ABI of libstdc++

    @property
    def dist(self) -> str:
        top = self.load.name.partition(".")[0]
        return str(table("loads")["distributions"].get(top, top))

    @property
    def named(self) -> str:
        return f"{self.dist} {self.software.version(self.dist)}".strip()

    @property
    def torch(self) -> str:
        return f"torch {self.software.version('torch')}".strip()

    @property
    def release(self) -> str:
        """Of torch, without the build."""
        return self.software.version("torch").partition("+")[0]

    @property
    def te(self) -> str:
        return self.software.version("transformer-engine") or "VERSION"

    @property
    def numpy(self) -> str:
        return self.software.version("numpy")

    @property
    def cuda(self) -> str:
        return self.software.torch_cuda or ""

    @property
    def cuda_of_torch(self) -> str:
        return f"torch is for CUDA {self.cuda}" if self.cuda else f"{self.torch} is a build without CUDA"

    @property
    def pip(self) -> str:
        return f"{self.software.executable} -m pip"

    @property
    def again(self) -> str:
        """What installs it anew for this torch."""
        version = self.software.version(self.dist).partition("+")[0]
        minor = re.match(r"(\d+)\.(\d+)", self.release)
        templates = table("loads")["again"]
        template = templates.get(self.dist, templates[""])
        if (self.dist == "torchvision" and (not minor or minor[1] != "2")) or (
            self.dist == "torchaudio" and not minor
        ):
            template = templates[""]
        exact, wheel = f"=={version}" if version else "", self._flash_wheel(version)
        vision = int(minor[2]) + 15 if minor else 0
        values = {"exact": exact, "wheel": wheel, "vision": vision, "minor": minor[0] if minor else ""}
        return str(template).format(case=self, **values)

    def _flash_wheel(self, version: str) -> str:
        """The release of flash-attn for this torch, in the names that its wheels have."""
        minor, major = re.match(r"\d+\.\d+", self.release), self.cuda.partition(".")[0]
        if not minor or not major:
            return ""
        tag = "cp" + "".join(self.software.python.split(".")[:2])
        abi = "*" if self.abi is None else str(self.abi).upper()
        file = f"flash_attn-{version or '*'}+cu{major}torch{minor[0]}cxx11abi{abi}-{tag}-{tag}-linux_*.whl"
        return f"; or {file} of github.com/Dao-AILab/flash-attention/releases, where there is one"


def judge(load: Load, software: Software, abi: bool | None = None) -> Line | None:
    """None where nothing is wrong with it; "not checked" where it cannot be known here."""
    case = _Case(load, software, abi)
    if load.went_well:
        found = _XFORMERS.search(load.printed)
        return line("loads.built-for", case=case, found=found) if found else None
    if not load.ended:
        at, seconds = f"; it is stuck at {load.place}" if load.place else "", format_seconds(load.seconds)
        return line(f"loads.{'busy' if load.busy else 'stuck'}", case=case, seconds=seconds, at=at)
    if load.signal:
        return _crashed(case)
    for pattern, verdict in _VERDICTS:
        found = pattern.search(load.error)
        if found is not None:
            if not isinstance(verdict, str):
                return verdict(case, found)
            return line(f"loads.error-{verdict}", case=case, found=found, short=_short(load.error))
    return line("loads.other", case=case, short=_short(load.error))


def _crashed(case: _Case) -> Line:
    try:
        name = signal.Signals(case.load.signal).name
    except ValueError:
        name = f"signal {case.load.signal}"
    at = f" at {case.load.place}" if case.load.place else ""
    key = {"SIGILL": "other-cpu", "SIGKILL": "killed"}.get(name, "crashed")
    return line(f"loads.signal-{key}", case=case, signal=name, at=at)


def _undefined(case: _Case, found: re.Match[str]) -> Line:
    path, symbol = found[1], found[2]
    of_cuda = symbol.startswith(("nccl", "__nvJitLink", "cublas", "cudnn", "cusparse"))
    key = "-cuda" if of_cuda or _CUDA_LIBRARY.search(path) else "-mkl" if symbol == "iJIT_NotifyEvent" else ""
    library, plain, built_for = path.rpartition("/")[2], _demangle(symbol), _built_for(case, symbol)
    return line(f"loads.symbol{key}", case=case, library=library, symbol=plain, built_for=built_for)


def _built_for(case: _Case, symbol: str) -> str:
    """What the symbol and the wheel's own version show: std::string is `Ss` in the old C++ ABI, `__cxx11` in
    the new."""
    wheel = re.search(r"torch(\d+\.\d+)", case.software.version(case.dist).partition("+")[2])
    text = f" (but for torch {wheel[1]})" if wheel else ""
    new = "__cxx11" in symbol
    old = not new and re.search(r"(?:Ss|SsE|RKSs)", symbol) is not None
    if case.abi is True and old:
        return text + " but for one with the old C++ ABI (cxx11abiFALSE; this torch is cxx11abiTRUE)"
    if case.abi is False and new:
        return text + " but for one with the new C++ ABI (cxx11abiTRUE; this torch is cxx11abiFALSE)"
    return text


def _absent_library(case: _Case, found: re.Match[str]) -> Line:
    name = found[1].rpartition("/")[2]
    toolkit, of_wheel = _TOOLKIT.match(name), _OF_WHEEL.match(name)
    version, wheel = toolkit[1] if toolkit else "", ""
    if toolkit:
        key = "-of-cuda"
    elif of_wheel:
        key = "-of-wheel"
        wheel = _pinned(case, f"nvidia-{of_wheel[1].lower()}-cu{(case.cuda or '12').partition('.')[0]}")
    elif name.startswith(("libtorch_cuda", "libc10_cuda")) and not case.cuda:
        key = "-of-cuda-build"
    else:
        key = "-of-torch" if name.startswith(("libtorch", "libc10")) else ""
    return line(f"loads.library{key}", case=case, name=name, version=version, wheel=wheel)


def _pinned(case: _Case, wheel: str) -> str:
    """As torch itself requires it, where it does."""
    for text in case.software.requires.get("torch", ()):
        if text.startswith(wheel):
            return f"'{text.partition(';')[0].strip()}'"
    return wheel


def _old_library(case: _Case, found: re.Match[str]) -> Line:
    return line(f"loads.{'glibc' if found[2] == 'GLIBC' else 'libstdcxx'}", case=case, found=found)


def _unregistered(case: _Case, found: re.Match[str]) -> Line:
    whose = replace(case, load=Load(found[1])) if case.software.has(found[1]) else case
    of_vision = "; transformers then reports Could not import module 'PreTrainedModel'"
    return line(
        "loads.operator", case=whose, found=found, also=of_vision if found[1] == "torchvision" else ""
    )


def _absent_module(case: _Case, found: re.Match[str]) -> Line:
    top = found[1].partition(".")[0]
    if case.software.has(top):
        return line("loads.part-missing", case=case, found=found, top=top)
    names = table("loads")
    package = names["packages"].get(top) or names["distributions"].get(top, top).replace("_", "-")
    return line("loads.module-missing", case=case, found=found, package=package)


def _absent_name(case: _Case, found: re.Match[str]) -> Line:
    why = _short(case.load.error.partition(" (/")[0])
    return line("loads.name-missing", case=case, other=replace(case, load=Load(found[2])), why=why)


# The first pattern that is found decides: the line's name, or what makes the line.
_VERDICTS: tuple[tuple[re.Pattern[str], str | Callable[[_Case, re.Match[str]], Line]], ...] = (
    (_NEEDS_GPU, "needs-gpu"),
    (_SYMBOL, _undefined),
    (_LIBRARY, _absent_library),
    (_VERSION, _old_library),
    (_EMPTY_TE, "empty-te"),
    (_OPERATOR, _unregistered),
    (_NO_CUDA_HOME, "no-toolkit"),
    (_NUMPY, "numpy"),
    (_NO_CUDA_BUILD, "no-cuda-build"),
    (_CUDNN, "cudnn"),
    (_MODULE, _absent_module),
    (_NAME, _absent_name),
)


def _short(text: str, most: int = 200) -> str:
    shown = next((one.strip() for one in text.splitlines() if one.strip()), "")
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _demangle(symbol: str) -> str:
    tool = shutil.which("c++filt")
    if tool is None or not symbol.startswith("_Z"):
        return symbol
    try:
        return run_command([tool, symbol]).stdout.strip() or symbol
    except CommandFailed:
        return symbol
