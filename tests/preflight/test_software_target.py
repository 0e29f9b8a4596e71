"""Which Python CMD will use: found from words, scripts and first lines, with nothing run."""

from __future__ import annotations

import sys
from pathlib import Path

from diag.preflight.software.target import Target, find_target


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}


def found(folder: Path, *words: str) -> Target:
    return find_target(words, environment(folder), folder)


def test_first_line_of_the_launcher_names_its_python(tmp_path: Path) -> None:
    python = executable(tmp_path / "env/bin/python3.11")
    executable(tmp_path / "bin/megatron", f"#!{python}\nimport sys\n")

    target = found(tmp_path, "megatron", "rlhf", "--rlhf_type", "dpo")

    assert (target.python, target.launcher, target.has("--rlhf_type")) == (str(python), "megatron", "dpo")


def test_first_line_through_env_takes_the_python_on_the_path(tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3")
    executable(tmp_path / "bin/torchrun", "#!/usr/bin/env python3\n")

    assert found(tmp_path, "torchrun", "t.py").python == str(python)


def test_first_line_that_is_too_long_for_the_kernel_is_read_where_pip_puts_it(tmp_path: Path) -> None:
    python = executable(tmp_path / "with space/python3")
    executable(tmp_path / "bin/deepspeed", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")

    assert found(tmp_path, "deepspeed", "t.py").python == str(python)


def test_python_of_torchrun_can_be_another_by_its_variable(tmp_path: Path) -> None:
    executable(tmp_path / "bin/torchrun", f"#!{executable(tmp_path / 'bin/python3')}\n")

    target = find_target(
        ["torchrun", "t.py"], {**environment(tmp_path), "PYTHON_EXEC": "/other/python"}, tmp_path
    )

    assert target.python == "/other/python"


def test_module_after_python_is_known_as_its_launcher(tmp_path: Path) -> None:
    executable(tmp_path / "bin/python3")

    target = found(
        tmp_path, "python3", "-u", "-m", "torch.distributed.run", "--nproc_per_node", "8", "train.py"
    )

    assert (target.launcher, target.python) == ("torchrun", str(tmp_path / "bin/python3"))


def test_imports_of_the_script_are_read_not_run(tmp_path: Path) -> None:
    executable(tmp_path / "bin/python3")
    script = tmp_path / "src/train.py"
    script.parent.mkdir()
    script.write_text(
        "import os, sys\nfrom megatron.training import pretrain\nif True:\n    import deepspeed\nraise SystemExit\n"
    )

    target = found(tmp_path, "python3", "src/train.py")

    assert target.imports is not None and {"megatron", "megatron.training", "deepspeed"} <= target.imports
    assert target.first == str(tmp_path / "src")


def test_wrappers_in_front_are_passed_by(tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3")
    executable(tmp_path / "bin/swift", f"#!{python}\n")
    executable(tmp_path / "bin/nohup")

    assert found(tmp_path, "nohup", "swift", "sft").launcher == "swift"
    alone = {**environment(tmp_path), "PATH": str(tmp_path / "bin")}  # a machine without Slurm
    assert (
        find_target(("srun", "-N2", "diag", "run", "--", "swift", "sft"), alone, tmp_path).missing_program
        == "srun"
    )


def test_shell_script_is_read_for_its_launcher_and_exports(tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3")
    executable(tmp_path / "bin/megatron", f"#!{python}\n")
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\nset -e\nexport MEGATRON_LM_PATH=/data/Megatron-LM\nexport X=$(date)\necho megatron starts\n"
        "NPROC_PER_NODE=8 \\\nmegatron sft \\\n  --model Qwen3 \n"
    )

    target = found(tmp_path, "bash", "train.sh")

    assert (target.launcher, target.words[:2], target.environment["MEGATRON_LM_PATH"]) == (
        "megatron", ("megatron", "sft"), "/data/Megatron-LM",
    )  # fmt: skip
    assert "X" not in target.environment
    assert found(tmp_path, "bash", "-c", "cd /x; NNODES=2 megatron sft").launcher in ("megatron", "")


def test_script_that_activates_an_environment_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("conda activate swift\ntorchrun t.py\n")

    target = found(tmp_path, "bash", "train.sh")

    assert "activates swift" in target.unfit and target.python == sys.executable


def test_command_that_runs_elsewhere_is_not_looked_at(tmp_path: Path) -> None:
    assert "runs CMD elsewhere" in found(tmp_path, "docker", "run", "image", "torchrun", "t.py").unfit


def test_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert found(tmp_path, "megatron", "rlhf").missing_program == "megatron"


def test_without_a_command_it_is_diags_own_python(tmp_path: Path) -> None:
    target = found(tmp_path)

    assert (target.python, target.launcher, target.unfit) == (sys.executable, "", "")
