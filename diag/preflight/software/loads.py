"""What an import that went wrong means, and what to install: from the words of the loader, Python and the
packages; pure."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from diag.preflight.software.ask import Load
from diag.preflight.software.facts import Software
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
_EMPTY_TE = "Found empty `transformer-engine` meta package"
# torchvision 0.22.0 on torch 2.13.0: RuntimeError: operator torchvision::nms does not exist
_OPERATOR = re.compile(r"operator (\w+)::\w+ does not exist")
# torch 2.7, torch/backends/cudnn: RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 5, 1) but found
#   runtime version (8, 9, 2)   (one line)
# deepspeed, op_builder/builder.py: MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA
# op(s)
_NO_CUDA_HOME = re.compile(r"CUDA_HOME (?:does not exist|environment variable is not set)")
# numpy: ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C
#   header, got 88 from PyObject   (one line)
_NUMPY = re.compile(
    r"numpy\.\w+ size changed|compiled using NumPy 1\.x cannot be run in|_ARRAY_API not found"
)
# torch: AssertionError: Torch not compiled with CUDA enabled
_NO_CUDA_BUILD = "Torch not compiled with CUDA enabled"
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
# Libraries of CUDA that torch brings as wheels: a symbol missing in one means that another copy of another
# version came first.
_CUDA_LIBRARY = re.compile(r"(?:^|/)lib(cu\w+|nvJitLink|nvrtc|nccl)[^/]*\.so")

# Modules whose package has another name.
_PACKAGES = {
    "cpuinfo": "py-cpuinfo", "yaml": "PyYAML", "PIL": "pillow", "cv2": "opencv-python-headless", "sklearn": "scikit-learn",
    "dateutil": "python-dateutil", "google": "protobuf", "swift": "ms-swift", "flash_attn_2_cuda": "flash-attn",
    "transformer_engine": "--no-build-isolation 'transformer-engine[pytorch]'",
    "transformer_engine_torch": "--no-build-isolation 'transformer-engine[pytorch]'",
}  # fmt: skip
_DISTS = {"flash_attn": "flash-attn", "transformer_engine": "transformer-engine", "mcore_bridge": "mcore-bridge",
          "megatron": "megatron-core"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadResult:
    """`id` is "" where it cannot be told from here; then `said` is the reason."""

    id: str
    said: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Case:
    load: Load
    software: Software
    abi: bool | None  # whether torch was built with the C++11 ABI of libstdc++
    demangle: Callable[[str], str] = field(default=lambda name: _demangle(name))  # noqa: PLW0108 - stands below

    @property
    def dist(self) -> str:
        return _DISTS.get(self.load.name.partition(".")[0], self.load.name.partition(".")[0])

    @property
    def named(self) -> str:
        return f"{self.dist} {self.software.version(self.dist)}".strip()

    @property
    def torch(self) -> str:
        return f"torch {self.software.version('torch')}".strip()

    def pip(self, what: str) -> str:
        return f"{self.software.executable} -m pip {what}"


def judge(load: Load, software: Software, abi: bool | None = None) -> LoadResult | None:
    """None where nothing is wrong with it."""
    case = _Case(load, software, abi)
    if load.went_well:
        built = _XFORMERS.search(load.printed)
        if built is not None:
            return LoadResult(
                "extension-abi-mismatch",
                f"{case.named} was built for torch {built[1]}, {case.torch} is here: its kernels are not loaded",
                _again(case),
            )
        return None
    if not load.ended:
        at = f"; it stands at {load.stood}" if load.stood else ""
        if load.busy:
            return LoadResult(
                "",
                f"`import {load.name}` takes longer than {format_seconds(load.seconds)} here{at}",
                "run `diag doctor` again when the machine is idle and its files are cached",
            )
        return LoadResult(
            "hang",
            f"`import {load.name}` has not ended after {format_seconds(load.seconds)}{at}",
            "look at what it does there: a file system that does not answer, a lock, a build at import (nvcc, ninja)",
        )
    if load.signal:
        return _crashed(case)
    text = load.error
    return (
        _without_gpu(case, text) or _undefined(case, text) or _absent_library(case, text) or _old_library(case, text)
        or _known(case, text) or _absent_module(case, text) or _other(case, text)
    )  # fmt: skip


def _without_gpu(case: _Case, text: str) -> LoadResult | None:
    found = _NEEDS_GPU.search(text)
    if found is None:
        return None
    return LoadResult(
        "",
        f"{case.named} cannot be loaded without a GPU driver ({_short(text)})",
        "run `diag doctor` where the job will run",
    )


def _crashed(case: _Case) -> LoadResult:
    try:
        name = signal.Signals(case.load.signal).name
    except ValueError:
        name = f"signal {case.load.signal}"
    at = f" at {case.load.stood}" if case.load.stood else ""
    if name == "SIGILL":
        return LoadResult(
            "extension-abi-mismatch",
            f"`import {case.load.name}` ends with SIGILL{at}: {case.named} was built for another CPU",
            _again(case),
        )
    why = (
        "; who killed it is not known (memory?)"
        if name == "SIGKILL"
        else f": {case.named} does not fit {case.torch} or its libraries"
    )
    return LoadResult(
        "extension-abi-mismatch", f"`import {case.load.name}` ends with {name}{at}{why}", _again(case)
    )


def _undefined(case: _Case, text: str) -> LoadResult | None:
    found = _SYMBOL.search(text)
    if found is None:
        return None
    path, symbol = found[1], found[2]
    library = path.rpartition("/")[2]
    plain = case.demangle(symbol)
    if _CUDA_LIBRARY.search(path) or symbol.startswith(
        ("nccl", "__nvJitLink", "cublas", "cudnn", "cusparse")
    ):
        return LoadResult(
            "cuda-version-mismatch",
            f"{library} finds no symbol {plain}: a CUDA or NCCL library of another version is loaded "
            "in place of the one that it was built with",
            _path_remedy(case),
        )
    if symbol == "iJIT_NotifyEvent":
        return LoadResult(
            "version-mismatch",
            f"{library} finds no symbol {plain}: mkl 2024.1 and later lack it",
            "conda install 'mkl<2024.1', or torch from pip",
        )
    return LoadResult(
        "extension-abi-mismatch",
        f"{case.named} was not built for {case.torch}{_built_for(case, symbol)}: {library} lacks {plain[:160]}",
        _again(case),
    )


def _built_for(case: _Case, symbol: str) -> str:
    """What the symbol and the wheel's own version tell: std::string is `Ss` in the old C++ ABI, `__cxx11` in
    the new."""
    wheel = re.search(r"torch(\d+\.\d+)", case.software.version(case.dist).partition("+")[2])
    told = f" (but for torch {wheel[1]})" if wheel else ""
    old, new = (
        "__cxx11" not in symbol and re.search(r"(?:Ss|SsE|RKSs)", symbol) is not None,
        "__cxx11" in symbol,
    )
    if case.abi is True and old:
        return told + " but for one with the old C++ ABI (cxx11abiFALSE; this torch is cxx11abiTRUE)"
    if case.abi is False and new:
        return told + " but for one with the new C++ ABI (cxx11abiTRUE; this torch is cxx11abiFALSE)"
    return told


def _absent_library(case: _Case, text: str) -> LoadResult | None:
    found = _LIBRARY.search(text)
    if found is None:
        return None
    name = found[1].rpartition("/")[2]
    cuda = case.software.torch_cuda
    here = f"torch is for CUDA {cuda}" if cuda else f"{case.torch} is a build without CUDA"
    version = re.match(
        r"lib(?:cudart|cublas|cublasLt|cufft|cusparse|cusolver|nvrtc|curand|cupti)\.so\.(\d+)", name
    )
    if version is not None:
        return LoadResult(
            "cuda-version-mismatch",
            f"{case.named} needs {name} (CUDA {version[1]}), which is not found; {here}",
            _again(case),
        )
    wheel = next(
        (
            wheel
            for wheel in ("cudnn", "nccl", "cusparselt", "nvshmem", "cufile")
            if name[3:].lower().startswith(wheel)
        ),
        "",
    )
    if wheel:
        major = (cuda or "12").partition(".")[0]
        return LoadResult(
            "cuda-version-mismatch",
            f"{case.named} needs {name}, which is not found; {here}",
            case.pip(f"install {_pinned(case, f'nvidia-{wheel}-cu{major}')}"),
        )
    # torchaudio 2.7.0 on torch 2.13.0+cpu: OSError: libtorch_cuda.so: cannot open shared object file: No such
    # file or directory
    if name.startswith(("libtorch_cuda", "libc10_cuda")) and cuda is None:
        return LoadResult(
            "cuda-version-mismatch", f"{case.named} was built for a torch with CUDA; {here}", _again(case)
        )
    if name.startswith(("libtorch", "libc10")):
        return LoadResult(
            "extension-abi-mismatch",
            f"{case.named} needs {name}, which {case.torch} does not have",
            _again(case),
        )
    return LoadResult(
        "missing-module",
        f"{case.named} needs {name}, which is not found",
        "install the system package that has it (`apt-file search "
        + name
        + "`), or put its folder into LD_LIBRARY_PATH",
    )


def _pinned(case: _Case, wheel: str) -> str:
    """As torch itself requires it, where it does."""
    for text in case.software.requires.get("torch", ()):
        if text.startswith(wheel):
            return f"'{text.partition(';')[0].strip()}'"
    return wheel


def _old_library(case: _Case, text: str) -> LoadResult | None:
    found = _VERSION.search(text)
    if found is None:
        return None
    if found[2] == "GLIBC":
        return LoadResult(
            "extension-abi-mismatch",
            f"{case.named} was built for glibc {found[3]}, which is newer than this system's",
            f"a newer image or system (`ldd --version`), or build it here: {_again(case)}",
        )
    return LoadResult(
        "extension-abi-mismatch",
        f"{case.named} needs {found[2]}_{found[3]}, which {found[1]} does not have",
        "conda install -c conda-forge libstdcxx-ng, with $CONDA_PREFIX/lib first in LD_LIBRARY_PATH; or a newer image",
    )


def _known(case: _Case, text: str) -> LoadResult | None:
    if _EMPTY_TE in text:
        version = case.software.version("transformer-engine") or "VERSION"
        return LoadResult(
            "missing-module",
            f"{case.named} is an empty package: its part for torch is not installed ({_EMPTY_TE})",
            case.pip(f"install --no-build-isolation 'transformer-engine[pytorch]=={version}'"),
        )
    operator = _OPERATOR.search(text)
    if operator is not None:
        whose = replace(case, load=Load(operator[1])) if case.software.has(operator[1]) else case
        also = (
            "; transformers then says Could not import module 'PreTrainedModel'"
            if operator[1] == "torchvision"
            else ""
        )
        return LoadResult(
            "extension-abi-mismatch",
            f"{whose.named} was not built for {case.torch}: {operator[0]}{also}",
            _again(whose),
        )
    if _NO_CUDA_HOME.search(text):
        return LoadResult(
            "missing-header",
            f"{case.named} wants to compile, and there is no CUDA toolkit: {_short(text)}",
            f"install the toolkit of CUDA {case.software.torch_cuda or ''} and set CUDA_HOME, or use an image -devel",
        )
    if _NUMPY.search(text):
        return LoadResult(
            "version-mismatch",
            f"{case.named} was built for another numpy than {case.software.version('numpy')}: {_short(text)}",
            case.pip("install 'numpy<2'") + ", or newer releases of what was built for numpy 1",
        )
    if _NO_CUDA_BUILD in text:
        return LoadResult(
            "cuda-version-mismatch",
            f"{case.named} needs a torch with CUDA, {case.torch} has none",
            "install a CUDA build of torch",
        )
    if "cuDNN version incompatibility" in text:
        return LoadResult("cuda-version-mismatch", _short(text, 200), _path_remedy(case))
    return None


def _absent_module(case: _Case, text: str) -> LoadResult | None:
    found = _MODULE.search(text)
    if found is not None:
        top = found[1].partition(".")[0]
        if case.software.has(top):
            return LoadResult(
                "version-mismatch",
                f"{case.named} needs {found[1]}, which the installed {top} does not have",
                f"install the releases that belong together; see `{case.software.executable} -m pip check`",
            )
        return LoadResult(
            "missing-module",
            f"{case.named} needs {found[1]}, which is not installed",
            case.pip(f"install {_PACKAGES.get(top) or _DISTS.get(top, top).replace('_', '-')}"),
        )
    found = _NAME.search(text)
    if found is not None:
        other = _DISTS.get(found[2].partition(".")[0], found[2].partition(".")[0])
        there = f"{other} {case.software.version(other)}".strip()
        return LoadResult(
            "version-mismatch",
            f"{case.named} does not fit {there}: {_short(text.partition(' (/')[0])}",
            f"install releases of {case.dist} and {other} that belong together; see `{case.software.executable} -m pip check`",
        )
    return None


def _other(case: _Case, text: str) -> LoadResult:
    return LoadResult(
        "missing-module",
        f"`import {case.load.name}` fails: {case.load.kind}: {_short(text)}",
        f"{case.software.executable} -c 'import {case.load.name}' shows all of it",
    )


def _again(case: _Case) -> str:
    """Install it anew for this torch, exactly."""
    version, torch = (
        case.software.version(case.dist).partition("+")[0],
        case.software.version("torch").partition("+")[0],
    )
    minor = re.match(r"(\d+)\.(\d+)", torch)
    exact = f"=={version}" if version else ""
    if case.dist == "flash-attn":
        tag = "cp" + "".join(case.software.python.split(".")[:2])
        cuda, abi = (
            (case.software.torch_cuda or "").partition(".")[0],
            "*" if case.abi is None else str(case.abi).upper(),
        )
        wheel = (
            (
                f"; or flash_attn-{version or '*'}+cu{cuda}torch{minor[1]}.{minor[2]}cxx11abi{abi}-{tag}-{tag}-linux_*.whl of "
                "github.com/Dao-AILab/flash-attention/releases, where there is one"
            )
            if minor and cuda
            else ""
        )
        build = f"install --no-build-isolation --no-cache-dir --force-reinstall --no-deps 'flash-attn{exact}'"
        return case.pip(build) + wheel + "; or do without: pip uninstall flash-attn"
    if case.dist == "transformer-engine":
        return case.pip(
            f"install --no-build-isolation --no-cache-dir --force-reinstall --no-deps 'transformer-engine-torch{exact}'"
        )
    if case.dist in ("apex", "amp_C", "fused_layer_norm_cuda"):
        return (
            "build it from github.com/NVIDIA/apex with this torch, or do without: pip uninstall apex, with "
            "--gradient_accumulation_fusion false in ms-swift"
        )
    if case.dist == "torchvision" and minor and minor[1] == "2":
        return case.pip(f"install 'torchvision==0.{int(minor[2]) + 15}.*' 'torch=={torch}'")
    if case.dist == "torchaudio" and minor:
        return case.pip(f"install 'torchaudio=={minor[1]}.{minor[2]}.*' 'torch=={torch}'")
    if case.dist == "torch":
        return case.pip(f"install --force-reinstall 'torch{exact}'") + ", and see LD_LIBRARY_PATH"
    return (
        case.pip(f"install --force-reinstall --no-cache-dir --no-deps '{case.dist}'")
        + f", a release that was built for {case.torch}"
    )


def _path_remedy(case: _Case) -> str:
    return (
        "`unset LD_LIBRARY_PATH`, or take the folder of the other CUDA out of it: torch brings its own; "
        + case.pip(f"install --force-reinstall 'torch=={case.software.version('torch').partition('+')[0]}'")
    )


def _short(text: str, most: int = 160) -> str:
    line = next((one.strip() for one in text.splitlines() if one.strip()), "")
    return line if len(line) <= most else line[: most - 3] + "..."


def _demangle(symbol: str) -> str:
    tool = shutil.which("c++filt")
    if tool is None or not symbol.startswith("_Z"):
        return symbol
    try:
        done = subprocess.run([tool, symbol], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return symbol
    return done.stdout.strip() or symbol
