"""The vocabulary is whole under one name, and loads only what is asked for: a command's start pays for each class."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from diag.model import observations

FOLDER = Path(observations.__file__).parent
_OF_THEIR_OWN = ("waits",)  # facts of the kernel's waits, imported from there


def defined(file: Path) -> set[str]:
    body = ast.parse(file.read_text()).body
    names = {one.name for one in body if isinstance(one, (ast.ClassDef, ast.FunctionDef))}
    names |= {
        target.id
        for one in body
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    return {name for name in names if not name.startswith("_")}


def test_every_fact_of_every_module_can_be_imported_from_the_package() -> None:
    files = [one for one in FOLDER.glob("*.py") if one.stem not in ("__init__", *_OF_THEIR_OWN)]
    wanted = {(name, file.stem) for file in files for name in defined(file)}

    assert len(wanted) > 100
    assert wanted == {(name, module) for name, module in observations._HOMES.items()}
    assert all(getattr(observations, name) for name, _ in wanted)
    assert {name for name, _ in wanted} <= {*dir(observations)}


def test_name_that_is_no_fact_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchFact'"):
        observations.NoSuchFact  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("from diag.model.observations import GpuSample", "diag.model.observations.nccl"),
        ("import diag.preflight.checks, diag.preflight.network", "diag.preflight.estimate"),
        ("import diag.preflight.checks, diag.preflight.network", "diag.model.observations.nccl"),
        ("import diag.preflight.software", "diag.preflight.software.trainer_flags"),
        ("import diag.preflight.software", "diag.preflight.gpus"),
        ("import diag.sources.gpu.nvml_helper", "diag.model"),
    ],
)
def test_start_loads_nothing_that_it_does_not_need(code: str, absent: str) -> None:
    program = f"import sys; {code}; print({absent!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
