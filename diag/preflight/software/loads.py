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

# xformers 0.0.30 on torch 2.13.0, a warning on stderr:
#   WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:
#       PyTorch 2.7.0+cu126 with CUDA 1206 (you have 2.13.0+cpu)
_XFORMERS = re.compile(r"xFormers was built for:\s+PyTorch (\S+)")
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
    for kind, pattern in table("loads")["errors"].items():
        found = re.search(pattern, load.error)
        if found is not None:
            if kind in _JUDGES:
                return _JUDGES[kind](case, found)
            return line(f"loads.error-{kind}", case=case, found=found, short=_short(load.error))
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
    also = of_vision if found[1] == "torchvision" else ""
    return line("loads.operator", case=whose, found=found, also=also)


def _absent_module(case: _Case, found: re.Match[str]) -> Line:
    top = found[1].partition(".")[0]
    if case.software.has(top):
        return line("loads.part-missing", case=case, found=found, top=top)
    names = table("loads")
    whose = next((dist for start, dist in names["built"].items() if top.startswith(start)), "")
    if whose:
        again = replace(case, load=Load(whose)).again
        return line("loads.module-built", case=case, found=found, whose=whose, again=again)
    dashed = top.replace("_", "-")
    package = names["packages"].get(top) or names["distributions"].get(top)
    if package is None and dashed in _declared(case.software):
        package = dashed
    if package is None:  # a name made from the module's may be another project's
        return line("loads.module-unknown", case=case, found=found)
    return line("loads.module-missing", case=case, found=found, package=package)


def _declared(software: Software) -> set[str]:
    """What the installed packages say that they require."""
    texts = (text for all_of in software.requires.values() for text in all_of)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for text in texts if (name := re.match(r"[\w.-]+", text))}


def _absent_name(case: _Case, found: re.Match[str]) -> Line:
    why = _short(case.load.error.partition(" (/")[0])
    return line("loads.name-missing", case=case, other=replace(case, load=Load(found[2])), why=why)


_JUDGES: dict[str, Callable[[_Case, re.Match[str]], Line]] = {
    "symbol": _undefined,
    "library": _absent_library,
    "version": _old_library,
    "operator": _unregistered,
    "module": _absent_module,
    "name": _absent_name,
}


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
