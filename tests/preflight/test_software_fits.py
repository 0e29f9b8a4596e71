"""Versions that break together, requirements, Megatron trees, CUDA: with the versions that were seen to break
and those that run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.preflight.line import Line
from diag.preflight.software import cuda
from diag.preflight.software.ask import Software, inventory, parse
from diag.preflight.software.cuda import check_compilers, compiles
from diag.preflight.software.fits import _requirement, before, check_megatron, clashes, unmet
from diag.preflight.software.target import Target, used_by

# Seen to run: ms-swift 4.6.0 on a machine without GPU, and on H200 GPUs with Python 3.12
RUNS = {"ms-swift": "4.6.0", "megatron-core": "0.16.1", "mcore-bridge": "1.6.1", "transformers": "4.57.6", "msgspec": "0.22.0",
        "torch": "2.13.0+cpu", "peft": "0.19.1", "numpy": "2.4.6", "pandas": "3.1.1", "pyarrow": "26.0.1"}  # fmt: skip
RUNS_ON_GPU = {**RUNS, "megatron-core": "0.18.2", "mcore-bridge": "1.6.5", "torch": "2.11.0+cu130", "peft": "0.20.0", "triton": "3.6.0",
               "transformer-engine": "2.16.1", "transformer-engine-torch": "2.16.1", "transformer-engine-cu13": "2.16.1"}  # fmt: skip
ENV = {"PATH": "/usr/bin:/bin"}


def software(installed: dict[str, str], **more: Any) -> Software:
    return Software("3.11.7", "/env/python", installed, more.pop("requires", {}), more.pop("modules", {}),
                    {"python_version": "3.11", "sys_platform": "linux"}, **more)  # fmt: skip


def target(*words: str, env: dict[str, str] | None = None, imports: set[str] | None = None) -> Target:
    return Target("/env/python", "", words[0] if words else "", words, {**ENV, **(env or {})},
                  imports=None if imports is None else frozenset(imports))  # fmt: skip


MEGATRON = target("megatron", "rlhf", "--rlhf_type", "dpo")


def found(there: Software, what: Target = MEGATRON) -> list[Line]:
    return list(clashes(there, used_by(what)))


@pytest.mark.parametrize("installed", [RUNS, RUNS_ON_GPU])
def test_versions_that_run_give_no_line(installed: dict[str, str]) -> None:
    assert found(software(installed)) == []


@pytest.mark.parametrize(
    ("change", "id", "message"),
    [
        ({"mcore-bridge": "1.6.2"}, "version-mismatch", "mcore-bridge 1.6.2 with megatron-core 0.16.1 fails: No module named "
         "'megatron.core.models.hybrid'"),
        ({"mcore-bridge": "1.6.3"}, "missing-module", "mcore-bridge 1.6.3 without triton fails: No module named 'triton'"),
        ({"mcore-bridge": "1.6.5", "triton": "3.7.1", "transformers": "5.19.0"}, "version-mismatch", "has no attribute 'rope_theta'"),
        ({"msgspec": ""}, "missing-module", "ms-swift 4.6.0 without msgspec fails: No module named 'msgspec'"),
        ({"peft": "0.17.1", "transformers": "5.2.0"}, "version-mismatch", "cannot import name 'HybridCache'"),
        ({"pandas": "2.1.4"}, "version-mismatch", "numpy 2.4.6 with pandas 2.1.4"),
        ({"pyarrow": "15.0.2"}, "version-mismatch", "numpy 2.4.6 with pyarrow 15.0.2"),
        ({"torch": "2.2.2+cu121"}, "version-mismatch", "numpy 2.4.6 with torch 2.2.2+cu121"),
        ({"apex": "0.9.10.dev0"}, "version-mismatch", "UnencryptedCookieSessionFactoryConfig"),
        ({"transformer-engine": "2.16.1", "transformer-engine-torch": "2.10.0"}, "version-mismatch", "must be of one version"),
    ],
)  # fmt: skip
def test_pair_that_is_known_to_break_is_told_with_the_message_that_follows(
    change: dict[str, str], id: str, message: str
) -> None:
    (line,) = found(software({name: version for name, version in {**RUNS, **change}.items() if version}))

    assert (line.status, line.id) == ("problem", id) and message in line.said
    assert "/env/python -m pip install" in line.remedy or "pip uninstall apex" in line.remedy


def test_what_the_command_does_not_use_is_a_note() -> None:
    broken = software({**RUNS, "mcore-bridge": "1.6.2"})

    for what in (target("swift", "sft"), target("torchrun", imports={"torch"}), target()):
        (line,) = found(broken, what)
        assert (line.status, line.id) == ("note", "")


def test_requirement_that_is_not_met_is_told_where_the_command_uses_both() -> None:
    there = software(
        {**RUNS, "torch": "2.7.0", "nvidia-cudnn-cu12": "9.1.0.70", "trl": "1.2.0"},
        requires={
            "torch": (
                "nvidia-cudnn-cu12==9.5.1.17; platform_system == 'Linux' or sys_platform == 'linux'",
                "sympy>=1.13.3",
            ),
            "ms-swift": (
                "trl<1.0,>=0.15",
                "gradio>=3.40",
                "mcore-bridge>=1.6.3; extra == 'megatron'",
                "no requirement at all !",
            ),
        },
    )

    lines = list(unmet(there, used_by(MEGATRON)))

    assert [(line.status, line.said) for line in lines] == [
        ("problem", "torch 2.7.0 requires nvidia-cudnn-cu12==9.5.1.17, 9.1.0.70 is here"),
        ("problem", "ms-swift 4.6.0 requires trl<1.0,>=0.15, 1.2.0 is here"),
    ]


def test_torch_of_nvidias_containers_counts_as_its_release() -> None:
    there = software(
        {"torch": "2.7.0a0+79aa17489c.nv25.4", "accelerate": "1.15"},
        requires={"accelerate": ("torch>=2.7.0",)},
    )

    assert list(unmet(there, {"accelerate", "torch"})) == []


def megatron_tree(folder: Path, version: str, training: bool = True) -> Path:
    core = folder / "megatron" / "core"
    core.mkdir(parents=True)
    major, minor, patch = version.split(".")
    (core / "package_info.py").write_text(
        f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = ''\n"
    )
    if training:
        (folder / "megatron" / "training").mkdir()
    return folder


def seen(what: Target, *folders: Path, **installed: str) -> Software:
    """By the inventory itself, in a Python without packages but these folders."""
    env = {**what.environment, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    asked = Target(sys.executable, "", what.launcher, what.words, env, imports=what.imports)
    versions = {name.replace("_", "-"): version for name, version in installed.items()}
    answer = inventory(asked, before(what, versions.get("ms-swift", "")))
    assert isinstance(answer, dict), answer
    return parse({**answer, "installed": versions})


def test_tree_of_another_megatron_than_ms_swift_3_was_written_for_is_told(tmp_path: Path) -> None:
    tree = megatron_tree(tmp_path / "Megatron-LM", "0.13.2")
    what = target("megatron", "sft", env={"MEGATRON_LM_PATH": str(tree)})

    (line,) = check_megatron(what, seen(what, ms_swift="3.12.6"))

    assert (line.status, line.id) == ("problem", "version-mismatch")
    assert (
        f"MEGATRON_LM_PATH={tree} is Megatron 0.13.2, ms-swift 3.12.6 was written for core_r0.15.0"
        in line.said
    )
    assert line.remedy == f"git -C {tree} checkout core_r0.15.0"
    (fits,) = check_megatron(what, seen(what, ms_swift="3.8.3"))
    assert fits.status == "ok" and f"megatron.core 0.13.2 of {tree}, with megatron.training" in fits.said


def test_tree_without_megatron_training_is_told_to_ms_swift_3(tmp_path: Path) -> None:
    tree = megatron_tree(tmp_path / "tree", "0.15.4", training=False)
    what = target("megatron", "sft", env={"MEGATRON_LM_PATH": str(tree)})

    (line,) = check_megatron(what, seen(what, ms_swift="3.12.6"))

    assert (
        line.id == "missing-module"
        and "has no megatron/training: ms-swift 3.12.6 fails with No module named" in line.said
    )


def test_path_that_is_not_set_is_a_note_of_the_clone_that_follows() -> None:
    (line,) = check_megatron(target("megatron", "sft"), software({"ms-swift": "3.10.3"}))

    assert (
        line.status == "note"
        and "clones Megatron-LM core_r0.14.0" in line.said
        and "export MEGATRON_LM_PATH" in line.remedy
    )


def test_path_that_ms_swift_4_does_not_read_is_a_note(tmp_path: Path) -> None:
    tree = megatron_tree(tmp_path / "wheel", "0.16.1", training=False)
    what = target("megatron", "rlhf", env={"MEGATRON_LM_PATH": "/data/Megatron-LM"})

    note, fits = check_megatron(what, seen(what, tree, ms_swift="4.6.0", megatron_core="0.16.1"))

    assert note.status == "note" and "ms-swift 4.6.0 does not read it" in note.said
    assert fits.status == "ok" and "megatron.core 0.16.1" in fits.said


def test_tree_on_pythonpath_that_hides_the_installed_megatron_is_told(tmp_path: Path) -> None:
    tree = megatron_tree(tmp_path / "old", "0.12.0")
    what = target("megatron", "rlhf")

    (line,) = check_megatron(what, seen(what, tree, ms_swift="4.6.0", megatron_core="0.16.1"))

    assert line.id == "version-mismatch" and "hides the installed megatron-core 0.16.1" in line.said


def test_core_and_training_of_two_trees_are_told(tmp_path: Path) -> None:
    core = megatron_tree(tmp_path / "site", "0.16.1", training=False)
    both = megatron_tree(tmp_path / "Megatron-LM", "0.13.2")
    what = target("torchrun", "pretrain_gpt.py", imports={"megatron", "megatron.training"})

    (line,) = check_megatron(what, seen(what, core, both))
    (sound,) = check_megatron(what, seen(what, both, core))

    assert line.id == "version-mismatch" and f"but megatron.training comes from {both}" in line.said
    assert sound.status == "ok"


def test_megatron_training_is_in_no_wheel(tmp_path: Path) -> None:
    wheel = megatron_tree(tmp_path / "site", "0.16.1", training=False)
    what = target("torchrun", "pretrain_gpt.py", imports={"megatron", "megatron.training"})

    (line,) = check_megatron(what, seen(what, wheel))

    assert (
        line.id == "missing-module" and "No module named 'megatron.training', which no wheel has" in line.said
    )


def test_command_that_is_no_megatron_gets_no_line_of_it() -> None:
    assert list(check_megatron(target("swift", "sft"), software(RUNS))) == []


CUDA_12 = software({"torch": "2.7.0", "nvidia-cudnn-cu12": "9.5.1.17"}, torch_cuda="12.6")


@pytest.mark.parametrize(
    ("driver", "status", "words"),
    [
        (11040, "problem", "the driver runs up to CUDA 11.4: it sees no GPU"),
        (12040, "note", "the driver runs up to CUDA 12.4: it works within CUDA 12"),
        (12060, "ok", "the driver runs up to CUDA 12.6"),
        (13000, "ok", "the driver runs up to CUDA 13.0"),
        (None, "not checked", "no NVIDIA driver here"),
    ],
)
def test_driver_is_held_against_the_cuda_of_torch(driver: int | None, status: str, words: str) -> None:
    (line,) = cuda.check_driver(CUDA_12, {}, (driver, 8))

    assert line.status == status and words in line.said and (line.remedy or status in ("ok", "note"))


def test_driver_of_a_compatibility_package_counts_where_torch_finds_it() -> None:
    (line,) = cuda.check_driver(CUDA_12, {"driver_cuda": 12080}, (11040, 8))

    assert line.status == "ok"


def test_torch_without_cuda_matters_where_gpus_are() -> None:
    without = software({"torch": "2.13.0+cpu"})

    assert [line.status for line in cuda.check_driver(without, {}, (12040, 8))] == ["problem"]
    assert [line.status for line in cuda.check_driver(without, {}, (None, 0))] == ["note"]


def test_second_cudnn_on_the_search_path_is_told_with_what_follows(tmp_path: Path) -> None:
    """Two cuDNN in one process, seen on H200: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED in the first forward."""
    (tmp_path / "libcudnn.so.9.1.0").touch()
    (tmp_path / "libcudnn.so.9").symlink_to("libcudnn.so.9.1.0")

    (line,) = cuda.check_copies(CUDA_12, {}, {"LD_LIBRARY_PATH": f"/nowhere::{tmp_path}"})

    assert (
        line.id == "cuda-version-mismatch" and "torch brings 9.5.1.17, LD_LIBRARY_PATH has 9.1.0" in line.said
    )
    assert str(tmp_path) in line.remedy
    (tmp_path / "libcudnn.so.9").unlink()
    (tmp_path / "libcudnn.so.9.1.0").rename(tmp_path / "libcudnn.so.9.5.1")
    assert list(cuda.check_copies(CUDA_12, {}, {"LD_LIBRARY_PATH": str(tmp_path)})) == []


def test_compile_at_run_time_needs_a_toolkit_that_fits(tmp_path: Path) -> None:
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
    nvcc.chmod(0o755)
    for name, text in (("g++", "#!/bin/sh\necho 13.2.0\n"), ("ninja", "#!/bin/sh\n"), ("gcc", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    there = software({"torch": "2.7.0", "deepspeed": "0.16.9"}, torch_cuda="12.6")
    what = target("swift", "sft", "--deepspeed", "zero3_offload", env={"PATH": str(tmp_path)})
    torch = {"cuda_home": str(tmp_path / "cuda"), "gcc_bounds": {"11.8": [[6, 0, 0], [12, 0]]}}

    toolkit, compiler = check_compilers(what, there, torch)
    (absent,) = check_compilers(what, there, {})

    assert toolkit.id == "cuda-version-mismatch" and "is CUDA 11.8, torch is for CUDA 12.6" in toolkit.said
    assert compiler.id == "version-mismatch" and "g++ 13.2.0 does not work with nvcc 11.8" in compiler.said
    assert "g++-11" in compiler.remedy
    assert absent.id == "missing-header" and "there is no nvcc (CUDA_HOME does not exist)" in absent.said


def toolkit_of(folder: Path, release: str, gcc: str) -> dict[str, Any]:
    """nvcc and compilers that say their versions, and what torch says of them."""
    programs = {
        "cuda/bin/nvcc": f"echo 'Cuda compilation tools, release {release}, V{release}.89'",
        "g++": f"echo {gcc}",
    }
    for name, text in {**programs, "ninja": ":", "gcc": ":"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {"cuda_home": str(folder / "cuda"), "gcc_bounds": {"12.6": [[6, 0, 0], [14, 0]]}}


def test_compiler_that_is_too_old_for_nvcc_is_told_with_one_that_needs_no_root(tmp_path: Path) -> None:
    torch = toolkit_of(tmp_path, "12.6", "4.8.5")
    there = software({"torch": "2.7.0", "deepspeed": "0.16.9"}, torch_cuda="12.6")
    what = target("swift", "sft", "--deepspeed", "zero3_offload", env={"PATH": str(tmp_path)})

    (old,) = check_compilers(what, there, torch)

    assert old.id == "version-mismatch" and "less than the minimum required version" in old.said
    assert "conda install -c conda-forge gxx_linux-64=13" in old.remedy
    (fits,) = check_compilers(what, there, toolkit_of(tmp_path, "12.6", "11.4.0"))
    assert fits.status == "ok"


def test_package_to_be_built_needs_cudnns_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_SYSTEM", ())
    torch = toolkit_of(tmp_path, "12.6", "11.4.0")
    there = software({"torch": "2.7.0", "nvidia-cudnn-cu12": "9.5.1.17"}, torch_cuda="12.6")
    what = target("megatron", "sft", env={"PATH": str(tmp_path)})

    (missing,) = cuda.check_build(what, there, torch, "it is compiled")

    assert missing.id == "missing-header" and "cudnn.h: No such file or directory" in missing.said
    assert "import nvidia.cudnn" in missing.remedy and "apt-get" not in missing.remedy
    (tmp_path / "cudnn/include").mkdir(parents=True)
    (tmp_path / "cudnn/include/cudnn.h").touch()
    found = target("megatron", "sft", env={"PATH": str(tmp_path), "CUDNN_PATH": str(tmp_path / "cudnn")})
    assert list(cuda.check_build(found, there, torch, "it is compiled")) == []


def test_command_that_compiles_nothing_gets_no_line_of_compilers(tmp_path: Path) -> None:
    there = software({"torch": "2.7.0", "deepspeed": "0.16.9"}, torch_cuda="12.6")
    (tmp_path / "plain.json").write_text(
        '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}}}'
    )
    (tmp_path / "cpu.json").write_text(
        '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}'
    )

    assert list(check_compilers(target("swift", "sft", "--deepspeed", "zero3"), there, {})) == []
    assert compiles(target("swift", "sft", "--deepspeed", str(tmp_path / "plain.json")), there) == ""
    assert "CPUAdam" in compiles(target("swift", "sft", "--deepspeed", str(tmp_path / "cpu.json")), there)


def test_inventory_of_a_python_that_does_not_run_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text(
        "#!/bin/sh\necho 'error while loading shared libraries: libpython3.11.so.1.0' >&2\nexit 127\n"
    )
    broken.chmod(0o755)

    assert inventory(Target(str(broken), "", "", (), ENV)) == (
        "ends with 127: error while loading shared libraries: libpython3.11.so.1.0"
    )


def test_nothing_of_the_software_is_imported_by_diag_itself() -> None:
    code = (
        "import sys; import diag.preflight.checks, diag.preflight.software;"
        "print(sorted({'torch', 'transformers', 'numpy', 'megatron', 'swift'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        ("numpy>=9", True),
        ("numpy>=9; extra == 'all'", False),
        ('numpy>=9 ; python_version >= "3.0" and extra == "all"', False),
        ("numpy>=9; extra == 'all' or python_version >= '3.0'", True),
        ("numpy>=9; python_version < '3.0'", False),
    ],
)
def test_requirement_of_an_extra_alone_is_none(requirement: str, holds: bool) -> None:
    markers = {"python_version": "3.11"}

    assert (_requirement(requirement, markers) is not None) == holds


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_name_and_version_are_those_of_the_head_of_the_metadata(tmp_path: Path, end: str) -> None:
    folder = tmp_path / "Some_Pkg-1.2.dist-info"
    folder.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: Some_Pkg", "Version: 1.2 ", "", "Name: other", "Version: 9"]
    (folder / "METADATA").write_bytes(end.join(lines).encode())
    target = Target(sys.executable, "", "", (), {"PYTHONPATH": str(tmp_path)})
    answer = inventory(target)

    assert isinstance(answer, dict) and answer["installed"]["some-pkg"] == "1.2"
