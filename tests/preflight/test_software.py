"""`diag doctor` on software that is really there: ms-swift on this machine's Python, and one package that
does not load."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.preflight import document
from diag.preflight.software import check_software
from tests.preflight.test_doctor import doctor

PARTS = {"software", "versions", "Megatron", "loads", "CUDA", "compilers"}
BIN = Path(sys.executable).parent
CPU_JOB = Path(__file__).parents[2] / "diag_job" / "cpu"  # what stands in for CUDA and Transformer Engine

needs_swift = pytest.mark.skipif(
    not (BIN / "megatron").exists() or importlib.util.find_spec("mcore_bridge") is None,
    reason="ms-swift is not installed here",
)
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed here"
)


def patiently(*words: str, **env: str) -> dict[str, Any]:
    """Every line, with more time for each import than a busy machine of tests may need."""
    return document(
        list(
            check_software(words, {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": "/nowhere", **env}, deadline=250.0)
        )
    )


def of_software(told: dict[str, Any], status: str) -> list[str]:
    return [
        f"{one['what']}: {one['said']}"
        for one in told["checks"]
        if one["what"] in PARTS and one["status"] == status
    ]


@needs_swift
def test_ms_swift_that_runs_here_has_nothing_wrong_with_it() -> None:
    told = patiently("megatron", "rlhf", "--rlhf_type", "dpo", PYTHONPATH=str(CPU_JOB), DIAG_JOB_DEVICE="cpu")

    assert of_software(told, "problem") == []
    (summary,) = [one for one in of_software(told, "ok") if one.startswith("software")]
    assert f"(of {BIN}/megatron): torch " in summary and "ms-swift 4." in summary
    assert any("mcore_bridge" in one and one.endswith("can be imported") for one in of_software(told, "ok"))


@needs_swift
def test_transformer_engine_that_ms_swift_4_imports_in_every_rank_is_missed_before_the_run() -> None:
    told, code = doctor("--", "megatron", "sft", PATH=f"{BIN}:/usr/bin:/bin")

    (line,) = of_software(told, "problem")
    assert "imports Transformer Engine in every rank, and it is not installed" in line and code == 10
    (finding,) = [one for one in told["findings"] if one["id"] == "missing-module"]
    assert finding["advice"].endswith("-m pip install --no-build-isolation 'transformer-engine[pytorch]'")


@needs_torch
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler here to build a shared object with")
def test_extension_that_does_not_fit_torch_is_a_problem_of_the_script_that_imports_it(tmp_path: Path) -> None:
    source = tmp_path / "f.c"
    source.write_text(
        "extern void _ZN3c105ErrorC2ENS_14SourceLocationESs(void);\n"
        "void *PyInit_flash_attn_2_cuda(void) { _ZN3c105ErrorC2ENS_14SourceLocationESs(); return 0; }\n"
    )
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "flash_attn_2_cuda.so"), str(source)], check=True
    )
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn/__init__.py").write_text("import flash_attn_2_cuda\n")
    (tmp_path / "train.py").write_text("import torch\nimport flash_attn\n")

    told = patiently(sys.executable, str(tmp_path / "train.py"))  # its folder is first on sys.path

    (line,) = of_software(told, "problem")
    assert line.startswith("loads: flash-attn was not built for torch ")
    assert [one["id"] for one in told["findings"]] == ["extension-abi-mismatch"]


@needs_torch
def test_nothing_is_imported_where_that_is_not_wanted() -> None:
    told, _ = doctor("--", sys.executable, "t.py")

    assert "loads: nothing was imported (--no-load)" in of_software(told, "not checked")


def test_program_that_is_not_there_is_told() -> None:
    told, code = doctor("--", "megatron", "sft", PATH="/nowhere")

    assert "software: `megatron` of CMD is not found on PATH" in of_software(told, "problem") and code == 10
