"""The sitecustomize folder and the import hook, without torch."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from diag_job import hooks, megatron
from diag_job.faults import in_phases, parse
from diag_job.faults.growing_save import GrowingSave
from diag_job.faults.runtime import Runtime

HOOKS = hooks.FOLDER


def python(code: str, *path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DIAG_", "RANK"))}
    clean["PYTHONPATH"] = os.pathsep.join(map(str, path))
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env={**clean, **environment}, capture_output=True, text=True, check=False)


def sitecustomize(folder: Path, code: str) -> Path:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return folder


def test_nothing_is_loaded_when_nothing_is_asked_for() -> None:
    said = python("import sys; print([m for m in sys.modules if m.startswith('diag')])", HOOKS)

    assert said.stdout.strip() == "[]"


def test_a_later_sitecustomize_still_runs(tmp_path: Path) -> None:
    theirs = sitecustomize(tmp_path / "theirs", "print('theirs')")

    said = python("print('job')", HOOKS, theirs)

    assert said.stdout.split() == ["theirs", "job"]


def test_an_earlier_sitecustomize_may_hand_on_to_ours(tmp_path: Path) -> None:
    chain = (
        "import importlib.machinery as m, importlib.util as u, sys\n"
        f"spec = m.PathFinder.find_spec('sitecustomize', [{str(HOOKS)!r}])\n"
        "spec.loader.exec_module(u.module_from_spec(spec))\n"
    )
    earlier = sitecustomize(tmp_path / "earlier", chain)
    later = sitecustomize(tmp_path / "later", "print('later')")

    said = python(
        "import sys; print('diag_job.faults' in sys.modules)", earlier, HOOKS, later, DIAG_FAULT="sigstop"
    )

    assert said.stdout.split() == ["later", "True"]


def test_a_fault_that_cannot_be_read_ends_the_command_with_2() -> None:
    said = python("print('started')", HOOKS, DIAG_FAULT="data-hnag")

    assert said.returncode == 2
    assert said.stdout == ""
    assert "error: there is no fault 'data-hnag'" in said.stderr


def test_a_hook_runs_after_the_import_and_a_probe_does_not_use_it_up() -> None:
    code = (
        "import importlib.util, sys\n"
        "from diag_job.after_import import after_import\n"
        "after_import('colorsys', lambda m: print('hook', hasattr(m, 'rgb_to_hsv')))\n"
        "importlib.util.find_spec('colorsys'); print('probed')\n"
        "import colorsys; print('imported')\n"
        "after_import('colorsys', lambda m: print('at once'))\n"
    )

    said = python(code, HOOKS, DIAG_JOB_DEVICE="cpu")

    assert said.stdout.splitlines() == ["probed", "hook True", "imported", "at once"], said.stderr


def test_the_printed_script_is_the_genuine_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("swift")
    flags = ["--print", "--fault", "data-hang", "--assets", str(tmp_path), "--output-dir", "/o", "--tp", "2"]

    assert megatron.main([*flags, "--", "--lr", "1e-5"]) == 0

    script = capsys.readouterr().out
    assert script.startswith("#!/bin/sh\n")
    assert "export DIAG_FAULT=data-hang\n" in script
    assert "megatron rlhf --rlhf_type dpo " in script
    assert script.rstrip().endswith("--lr 1e-5")
    assert "--sequence_parallel true" in script


def test_without_ms_swift_the_command_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.executable = '/nowhere/python'\nfrom diag_job import megatron; megatron.main(['--print'])"

    said = python(code, HOOKS, DIAG_JOB_DEVICE="cpu", PATH=str(tmp_path))

    assert said.returncode == 127
    assert "hint: pip install -r requirements/job.txt" in said.stderr


def test_hooks_prints_the_folder_for_scripts_and_refuses_a_fault_that_the_job_cannot_have() -> None:
    ask = [sys.executable, "-m", "diag_job.hooks"]

    plain = subprocess.run(ask, capture_output=True, text=True, check=True)
    good = subprocess.run(
        [*ask, "--fault", "data-hang:rank=1", "--ranks", "2"], capture_output=True, text=True, check=True
    )
    far = subprocess.run(
        [*ask, "--fault", "data-hang:rank=2", "--ranks", "2"], capture_output=True, text=True, check=False
    )
    misspelt = subprocess.run([*ask, "--fault", "data-hag"], capture_output=True, text=True, check=False)

    assert plain.stdout == good.stdout == f"{HOOKS}\n" and (HOOKS / "sitecustomize.py").is_file()
    assert far.returncode == 2 and "there is no rank 2" in far.stderr and not far.stdout
    assert misspelt.returncode == 2 and "there is no fault 'data-hag'" in misspelt.stderr


def a_module(name: str, **names: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    return module


@pytest.mark.parametrize(
    "name", ["transformer_engine.pytorch.optimizers.fused_adam", "apex.optimizers.fused_adam"]
)
def test_optimizer_hang_strikes_in_the_fused_optimizers_of_a_gpu_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class FusedAdam:
        def step(self) -> str:
            return "stepped"

    monkeypatch.setitem(sys.modules, name, a_module(name, FusedAdam=FusedAdam))
    runtime = Runtime(parse("optimizer-hang:rank=0,step=1,seconds=0.01"), tmp_path, rank=0)
    runtime.step = 1

    in_phases.hook_optimizer(runtime)
    before = (FusedAdam().step(), capfd.readouterr().err)
    runtime.step = 2

    assert before == ("stepped", "")
    assert FusedAdam().step() == "stepped"
    assert "optimizer-hang at step 2" in capfd.readouterr().err


@pytest.mark.parametrize("of", ["multiproc", "multithread"])  # megatron-core up to 0.16, and 0.18
def test_growing_save_holds_its_memory_until_megatron_has_written(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    class FileSystemWriterAsync:
        @staticmethod
        def preload_tensors() -> None:
            held.append(len(growing._staged))

    setattr(
        FileSystemWriterAsync,
        f"write_preloaded_data_{of}",
        staticmethod(lambda: held.append(len(growing._staged))),
    )
    name = "megatron.core.dist_checkpointing.strategies.filesystem_async"
    monkeypatch.setitem(sys.modules, name, a_module(name, FileSystemWriterAsync=FileSystemWriterAsync))
    runtime = Runtime(parse("growing-save:rank=1,megabytes=1"), tmp_path, rank=0, memory_cgroup=tmp_path)
    growing = GrowingSave(runtime)
    runtime.rank = 1  # what rank 0 writes down is not asked here
    monkeypatch.setattr("diag_job.faults.growing_save.time.sleep", lambda seconds: None)

    growing.hook()
    FileSystemWriterAsync.preload_tensors()
    getattr(FileSystemWriterAsync, f"write_preloaded_data_{of}")()

    assert held == [40, 40] and growing._staged == []
