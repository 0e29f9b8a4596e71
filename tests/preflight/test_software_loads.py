"""Imports that go wrong, really done: shared objects from a compiler, packages that crash, hang or print; and
the words they say."""
# ruff: noqa: E501 - what other programs say, as they say it

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag.preflight.software.ask import Load, Software, load
from diag.preflight.software.loads import judge
from diag.preflight.software.target import Target

COMPILER = shutil.which("g++") or shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(
    COMPILER is None, reason="no C compiler here to build a shared object with"
)


def software(**versions: str) -> Software:
    installed = {name.replace("_", "-"): version for name, version in versions.items()}
    return Software(
        python="3.11.7", executable="python3", installed=installed, requires={"torch": ("nvidia-cudnn-cu12==9.5.1.17; x",)},
        modules=dict.fromkeys(versions, "/x"), markers={}, torch_cuda="12.6",
    )  # fmt: skip


def really(folder: Path, *imports: str, deadline: float = 60.0, **env: str) -> Load:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(folder), **env}
    return load(Target(sys.executable, "", "", (), environment), imports[0], imports, deadline)


def package(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)


def shared_object(folder: Path, name: str, text: str, *options: str) -> None:
    assert COMPILER is not None
    (folder / f"{name}.c").write_text(text)
    subprocess.run(
        [
            COMPILER,
            "-x",
            "c",
            "-shared",
            "-fPIC",
            "-o",
            str(folder / f"{name}.so"),
            str(folder / f"{name}.c"),
            *options,
        ],
        check=True,
    )


EXTENSION = "extern void {symbol}(void);\nvoid *keep = (void *){symbol};\nvoid *PyInit_{name}(void) {{ {symbol}(); return 0; }}\n"


@needs_compiler
def test_flash_attn_that_was_built_for_another_torch_is_named_with_the_other_abi(tmp_path: Path) -> None:
    """The symbol is that of flash-attn 2.7.4.post1 on torch 2.7.0 (Dao-AILab/flash-attention, issue 1644)."""
    symbol = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
    shared_object(tmp_path, "flash_attn_2_cuda", EXTENSION.format(name="flash_attn_2_cuda", symbol=symbol))
    package(tmp_path, "flash_attn", "import flash_attn_2_cuda as flash_attn_gpu\n")

    verdict = judge(
        really(tmp_path, "flash_attn"), software(flash_attn="2.7.4.post1", torch="2.7.0"), abi=True
    )

    assert verdict is not None and verdict.id == "extension-abi-mismatch"
    assert verdict.said.startswith(
        "flash-attn 2.7.4.post1 was not built for torch 2.7.0 but for one with the old C++ ABI"
    )
    # without c++filt
    assert "c10::Error::Error(c10::SourceLocation" in verdict.said or symbol in verdict.said
    assert (
        "--no-build-isolation --no-cache-dir --force-reinstall --no-deps 'flash-attn==2.7.4.post1'"
        in verdict.remedy
    )
    assert "flash_attn-2.7.4.post1+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_*.whl" in verdict.remedy


@needs_compiler
def test_library_of_another_cuda_that_is_not_there_is_named(tmp_path: Path) -> None:
    shared_object(
        tmp_path, "libcudart", "int cudaGetDevice(int *n) { return 0; }\n", "-Wl,-soname,libcudart.so.11.0"
    )
    text = "extern int cudaGetDevice(int *);\nvoid *PyInit_amp_C(void) { cudaGetDevice(0); return 0; }\n"
    shared_object(tmp_path, "amp_C", text, f"-L{tmp_path}", "-lcudart")
    (tmp_path / "libcudart.so").unlink()

    verdict = judge(really(tmp_path, "amp_C"), software(torch="2.7.0"))

    assert verdict is not None and verdict.id == "cuda-version-mismatch"
    assert "needs libcudart.so.11.0 (CUDA 11), which is not found; torch is for CUDA 12.6" in verdict.said


def test_import_that_does_not_end_is_ended_and_told_with_its_line(tmp_path: Path) -> None:
    package(tmp_path, "deepspeed", "import threading\n\nthreading.Event().wait()\n")

    began = time.monotonic()
    loaded = really(tmp_path, "deepspeed", deadline=3.0)
    verdict = judge(loaded, software(deepspeed="0.16.9"))

    assert time.monotonic() - began < 30
    assert verdict is not None and verdict.id == "hang"
    assert (
        "`import deepspeed` has not ended after 3 s; it is stuck at " in verdict.said
        and "threading.py:" in verdict.said
    )


def test_import_that_still_computes_at_the_deadline_is_not_called_hung(tmp_path: Path) -> None:
    package(tmp_path, "deepspeed", "while True:\n    pass\n")

    verdict = judge(really(tmp_path, "deepspeed", deadline=5.0), software(deepspeed="0.16.9"))

    assert verdict is not None and verdict.id == "" and "takes longer than 5 s here" in verdict.said


def test_crash_is_told_with_its_signal_and_line(tmp_path: Path) -> None:
    package(tmp_path, "apex", "import ctypes\nctypes.string_at(0)\n")

    verdict = judge(really(tmp_path, "apex"), software(apex="0.1", torch="2.7.0"))

    assert verdict is not None and verdict.id == "extension-abi-mismatch"
    assert "`import apex` ends with SIGSEGV at " in verdict.said


def test_garbage_on_both_outputs_does_not_hide_what_happened(tmp_path: Path) -> None:
    noise = "import os\nfor _ in range(4000):\n    os.write(1, b'\\xff{\"error\": 1}\\n'); os.write(2, b'\\x00' * 99)\n"
    package(tmp_path, "triton", noise)
    package(tmp_path, "deepspeed", noise + "import no_such_module_here\n")

    assert judge(really(tmp_path, "triton"), software(triton="3.1")) is None
    verdict = judge(really(tmp_path, "deepspeed"), software(deepspeed="0.16.9"))
    assert verdict is not None and (verdict.id, verdict.said) == (
        "missing-module",
        "deepspeed 0.16.9 needs no_such_module_here, which is not installed",
    )


def test_exit_at_import_is_told(tmp_path: Path) -> None:
    package(tmp_path, "triton", "import sys\nsys.exit('no GPU, no fun')\n")
    package(tmp_path, "deepspeed", "import os\nos._exit(3)\n")

    exits, ends = (
        judge(really(tmp_path, "triton"), software()),
        judge(really(tmp_path, "deepspeed"), software()),
    )

    assert exits is not None and exits.said == "`import triton` fails: SystemExit: no GPU, no fun"
    assert ends is not None and "it ended Python with exit code 3" in ends.said


def test_nothing_is_written_and_no_gpu_is_seen(tmp_path: Path) -> None:
    package(
        tmp_path,
        "triton",
        "import os\nfor name in ('HOME', 'TRITON_CACHE_DIR', 'TMPDIR'):\n"
        "    open(os.path.join(os.environ[name], 'trace-of-it'), 'w').close()\n"
        "assert os.environ['CUDA_VISIBLE_DEVICES'] == '' and os.getcwd() == os.environ['HOME']\n",
    )

    before = sorted(tmp_path.rglob("*"))
    loaded = really(tmp_path, "triton", CUDA_VISIBLE_DEVICES="0", TRITON_CACHE_DIR=str(tmp_path))

    assert loaded.went_well, loaded
    assert sorted(tmp_path.rglob("*")) == before  # no __pycache__ either


def test_sound_import_is_no_verdict(tmp_path: Path) -> None:
    package(tmp_path, "triton", "")

    assert judge(really(tmp_path, "triton"), software(triton="3.1")) is None


@pytest.mark.parametrize(
    ("name", "kind", "error", "finding", "words"),
    [
        # torchvision 0.22.0 on torch 2.13.0, through transformers 4.57.6
        ("transformers", "RuntimeError", "operator torchvision::nms does not exist", "extension-abi-mismatch",
         "torchvision 0.22.0 was not built for torch 2.7.0"),
        # transformer-engine 2.20.2 from PyPI
        ("transformer_engine", "RuntimeError", "Found empty `transformer-engine` meta package installed. Install `transformer-engine` with "
         "framework extensions via'pip3 install --no-build-isolation transformer-engine[pytorch,jax]==VERSION'", "missing-module",
         "is an empty package"),
        ("flash_attn", "ImportError", "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by /x/flash_attn_2_cuda.so)",
         "extension-abi-mismatch", "was built for glibc 2.32"),
        ("flash_attn", "ImportError", "/opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /x/y.so)",
         "extension-abi-mismatch", "GLIBCXX_3.4.32, which /opt/conda/lib/libstdc++.so.6 does not have"),
        ("torch", "ImportError", "/x/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister", "cuda-version-mismatch",
         "a CUDA or NCCL library of another version"),
        ("torch", "ImportError", "/x/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent", "version-mismatch", "mkl 2024.1"),
        ("torch", "ImportError", "libcudnn.so.9: cannot open shared object file: No such file or directory", "cuda-version-mismatch",
         "needs libcudnn.so.9"),
        ("torchaudio", "OSError", "Could not load this library: /x/libtorchaudio.so\nlibtorch_cuda_x.so: cannot open shared object file: No "
         "such file or directory", "extension-abi-mismatch", "libtorch_cuda_x.so"),
        ("peft", "ImportError", "cannot import name 'HybridCache' from 'transformers' (/x/transformers/__init__.py)", "version-mismatch",
         "peft 0.17.0 does not fit transformers 5.2.0"),
        ("deepspeed", "MissingCUDAException", "CUDA_HOME does not exist, unable to compile CUDA op(s)", "missing-header",
         "there is no CUDA toolkit"),
        ("mcore_bridge", "ModuleNotFoundError", "No module named 'transformers.models.hybrid'", "version-mismatch",
         "which the installed transformers does not have"),
        ("transformer_engine", "ImportError", "libcuda.so.1: cannot open shared object file: No such file or directory", "",
         "cannot be loaded without a GPU driver"),
        ("datasets", "ValueError", "numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from "
         "PyObject", "version-mismatch", "was built for another numpy"),
        ("vllm", "TypeError", "unhashable type: 'list'", "missing-module", "`import vllm` fails: TypeError"),
    ],
)  # fmt: skip
def test_words_of_a_failed_import_are_understood(
    name: str, kind: str, error: str, finding: str, words: str
) -> None:
    there = software(torch="2.7.0", torchvision="0.22.0", transformers="5.2.0", peft="0.17.0")

    verdict = judge(Load(name, kind, error), there)

    assert verdict is not None and verdict.id == finding and words in verdict.said and verdict.remedy


def test_xformers_that_only_warns_is_told() -> None:
    """xformers 0.0.30 on torch 2.13.0+cpu: it can be imported, and does nothing."""
    printed = (
        "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
        "    PyTorch 2.7.0+cu126 with CUDA 1206 (you have 2.13.0+cpu)\n"
    )

    verdict = judge(Load("xformers", printed=printed), software(torch="2.13.0", xformers="0.0.30"))

    assert verdict is not None and verdict.said.startswith("xformers 0.0.30 was built for torch 2.7.0+cu126")


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("amp_C", "build it from github.com/NVIDIA/apex"),
        ("fused_weight_gradient_mlp_cuda", "build it from github.com/NVIDIA/apex"),
        ("grouped_gemm_backend", "git+https://github.com/fanshiqing/grouped_gemm"),
        ("flash_attn_2_cuda", "-m pip install flash-attn"),
        ("nvidia_cudnn_cu12", "-m pip install nvidia-cudnn-cu12"),  # torch says that it requires it
    ],
)
def test_missing_module_is_installed_under_a_name_that_is_known(module: str, remedy: str) -> None:
    verdict = judge(
        Load("deepspeed", "ModuleNotFoundError", f"No module named '{module}'"), software(deepspeed="0.16.9")
    )

    assert verdict is not None and remedy in verdict.remedy


def test_name_of_a_package_is_not_made_from_its_modules() -> None:
    verdict = judge(
        Load("deepspeed", "ModuleNotFoundError", "No module named 'no_such_module'"), software(deepspeed="1")
    )

    assert verdict is not None and "pip" not in verdict.remedy
