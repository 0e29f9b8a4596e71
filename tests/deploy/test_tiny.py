"""deploy/jobs/tiny/run.sh: its flags are those of ms-swift, its layouts fit its model, its errors say what to
do."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from diag_job import assets
from diag_job.faults import parse
from diag_job.faults.truth import TRUTHS
from tests.deploy.swift_flags import flags
from tests.deploy.test_jobs import JOBS, installed, recorded, used

SCRIPT = JOBS / "tiny" / "run.sh"
HERE = str(Path(sys.executable).parent)


def run(
    folder: Path, *words: str, path: str = f"{HERE}:/usr/bin:/bin", **variables: str
) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(folder / "home"), "TMPDIR": str(folder), "PATH": path, **variables}
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
        timeout=60,
        check=False,
    )


def command(folder: Path, *words: str, **variables: str) -> list[str]:
    done = run(folder, *words, **{"PRINT": "1", "CPU": "0", "GPUS": "2", "SWIFT": "4", **variables})
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def value(words: list[str], flag: str) -> str:
    return words[len(words) - words[::-1].index(f"--{flag}")]


def test_ms_swift_4_takes_each_flag(tmp_path: Path) -> None:
    words = used(command(tmp_path, SAVE_OPTIM="false")) | used(command(tmp_path, CPU="1"))

    assert words - flags(installed(), "MegatronRLHFArguments") == set()
    assert words - recorded("4.0.4")["MegatronRLHFArguments"] == set()
    assert len(words) > 35


@pytest.mark.parametrize("version", ["3.8.3", "3.12.6"])
def test_ms_swift_3_takes_each_flag_of_the_training_and_of_the_conversion(
    version: str, tmp_path: Path
) -> None:
    words, convert = command(tmp_path, SWIFT="3"), command(tmp_path, SWIFT="3", PRINT="convert")

    assert used(words) - recorded(version)["MegatronRLHFArguments"] == set()
    assert used(convert) - recorded(version)["ExportArguments"] == set()
    assert value(words, "load") == value(convert, "output_dir")
    assert value(words, "model") == value(convert, "model")


@pytest.mark.parametrize(
    ("gpus", "layout"),
    [
        (1, (1, 1, 1)),
        (2, (2, 1, 2)),
        (4, (2, 2, 2)),
        (8, (2, 2, 2)),
        (3, (1, 1, 1)),
        (6, (2, 1, 2)),
        (10, (2, 1, 2)),
        (12, (2, 2, 2)),
    ],
)
@pytest.mark.parametrize("cpu", ["0", "1"])
def test_each_layout_divides_the_ranks_and_the_model(
    gpus: int, layout: tuple[int, int, int], cpu: str, tmp_path: Path
) -> None:
    words = command(tmp_path, GPUS=str(gpus), CPU=cpu)

    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    tp, pp, ep = (int(value(words, name)) for name in names)
    assert (tp, pp, ep) == layout
    model = assets.SIZES[Path(value(words, "model")).name.removeprefix("qwen3-moe-")]
    assert gpus % (tp * pp) == 0 and gpus % (ep * pp) == 0
    assert (
        model.layers % pp,
        model.experts % ep,
        model.heads % tp,
        model.kv_heads % tp,
        model.vocabulary % tp,
    ) == (0,) * 5
    assert value(words, "sequence_parallel") == ("true" if tp > 1 else "false")
    batch, data_parallel = int(value(words, "global_batch_size")), gpus // tp // pp
    assert batch % (data_parallel * int(value(words, "micro_batch_size"))) == 0 and batch >= 8
    assert ("--ddp_backend" in words) == (cpu == "1")


def test_variables_reach_the_command_and_words_after_the_script_come_last(tmp_path: Path) -> None:
    words = command(
        tmp_path,
        "--train_iters",
        "7",
        "--lr",
        "1e-4",
        GPUS="4",
        TP="1",
        PP="2",
        EP="1",
        ITERS="5",
        SAVE_STEPS="3",
        SAVE_OPTIM="true",
        GLOBAL_BATCH="16",
        WORKERS="0",
        ATTENTION="flash",
        OUTPUT="/o u t",
        MODEL="/m",
        DATASET="/d",
        DIAG_FAULT="x",
    )

    expected = {
        "tensor_model_parallel_size": "1",
        "pipeline_model_parallel_size": "2",
        "expert_model_parallel_size": "1",
        "save_steps": "3",
        "no_save_optim": "false",
        "no_save_rng": "false",
        "global_batch_size": "16",
        "dataloader_num_workers": "0",
        "attention_backend": "flash",
        "output_dir": "/o u t",
        "model": "/m",
        "dataset": "/d",
        "train_iters": "7",
        "lr": "1e-4",
    }
    assert {name: value(words, name) for name in expected} == expected
    assert words[words.index("--train_iters") + 1] == "5" and words[-4:] == [
        "--train_iters",
        "7",
        "--lr",
        "1e-4",
    ]
    assert "--model_type" not in words  # of the model that is made, not of one that is given
    assert list(tmp_path.iterdir()) == []  # printing makes nothing


def test_the_drills_of_the_manual_are_faults_with_the_findings_that_are_true_of_them() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9=:,-]+)` \| [^|]+ \| ([^|]+) \|$",
        (JOBS / "tiny" / "README.md").read_text(),
        re.MULTILINE,
    )

    assert len(rows) == 16
    for text, says in rows:
        truth = TRUTHS[parse(text).name]
        findings = set(re.findall(r"`([a-z-]+)`", says)) if truth.classes == () else {says.split("`")[1]}
        assert findings == set(truth.findings), text
        assert set(re.findall(r"\(`(\w+)`\)", says)) == set(truth.classes), text


def test_gpus_are_counted_by_nvidia_smi_unless_some_are_chosen(tmp_path: Path) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    # nvidia-smi 570 -L of a machine with MIG on its second GPU
    smi.write_text(
        "#!/bin/sh\n"
        "echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d1a)'\n"
        "echo 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-77c0)'\n"
        "echo '  MIG 1g.10gb     Device  0: (UUID: MIG-9f0e)'\n"
    )
    smi.chmod(0o755)
    path = f"{smi.parent}:/usr/bin:/bin"

    def ranks(**variables: str) -> str:
        done = run(tmp_path, path=path, PRINT="1", **variables)
        return f"{value(shlex.split(done.stdout), 'global_batch_size')} {'on the CPU' in done.stderr} {'gloo' in done.stdout}"

    assert ranks() == ranks(CUDA_VISIBLE_DEVICES="0,1") == "8 False False"
    assert ranks(CUDA_VISIBLE_DEVICES="0,1,2") == "9 False False"
    assert {ranks(CUDA_VISIBLE_DEVICES=none) for none in ("", "-1", "none")} == {"8 True True"}
    assert ranks(CUDA_VISIBLE_DEVICES="0,-1") == ranks(CUDA_VISIBLE_DEVICES="3")


@pytest.mark.parametrize(
    ("variables", "code", "says"),
    [
        ({"GPUS": "6", "TP": "4"}, 2, "6 ranks are no multiple of TP x PP = 4 x 1"),
        ({"GPUS": "4", "EP": "3"}, 2, "4 ranks are no multiple of EP x PP = 3 x 2"),
        (
            {"GPUS": "8", "TP": "1", "PP": "1", "GLOBAL_BATCH": "4"},
            2,
            "GLOBAL_BATCH=4 is no multiple of the 8 data",
        ),
        ({"ITERS": "many"}, 2, "ITERS=many is no whole number above 0"),
        ({"CPU": "true"}, 2, "CPU=true is neither 0 nor 1"),  # it would have trained on the GPUs
        ({"SAVE_OPTIM": "1"}, 2, "SAVE_OPTIM=1 is neither true nor false"),  # and saved none
        ({"SWIFT": "2"}, 2, "SWIFT=4 for ms-swift 4.x"),
        ({"SWIFT": "3", "CPU": "1"}, 2, "ms-swift 3.x does not run without a GPU"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_made(
    variables: dict[str, str], code: int, says: str, tmp_path: Path
) -> None:
    done = run(tmp_path, **{"CPU": "0", "GPUS": "2", **variables})

    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr and "hint: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_ms_swift_it_says_so_and_exits_127(tmp_path: Path) -> None:
    done = run(tmp_path, path="/usr/bin:/bin", GPUS="1")

    assert done.returncode == 127
    assert "there is no `megatron` command" in done.stderr and "hint: activate" in done.stderr


# What stands in for the two programs tells its environment; the real ones run in tests/live/test_megatron.py.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*"
for name in NPROC_PER_NODE NNODES MASTER_PORT DIAG_FAULT DIAG_JOB_DEVICE PYTHONPATH HF_HUB_OFFLINE; do
  eval "echo $name=\\${$name-unset}"
done
[ "$(basename "$0")" = megatron ] || { for word; do :; done; mkdir -p "$word"; echo half > "$word/weights"; exit "${FAILS:-0}"; }
"""


@pytest.fixture
def programs(tmp_path: Path) -> str:
    pytest.importorskip("tokenizers")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("megatron", "swift"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_the_command_gets_ranks_fault_and_assets_by_its_environment(programs: str, tmp_path: Path) -> None:
    done = run(
        tmp_path,
        path=programs,
        PYTHON=sys.executable,
        GPUS="2",
        CPU="1",
        SWIFT="4",
        FAULT="data-hang:rank=1",
        NNODES="2",
        PYTHONPATH="/mine",
    )

    assert done.returncode == 0, done.stderr
    said = dict(line.split("=", 1) for line in done.stdout.splitlines()[1:])
    assert said["PYTHONPATH"].startswith("/mine" + os.pathsep) and said.pop("PYTHONPATH").endswith(
        "/diag_job/cpu"
    )
    assert said == {
        "NPROC_PER_NODE": "2",
        "NNODES": "unset",
        "MASTER_PORT": "unset",
        "DIAG_FAULT": "data-hang:rank=1",
        "DIAG_JOB_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
    }
    words = done.stdout.splitlines()[0].split()
    assert (
        Path(value(words, "model"), "model.safetensors").is_file() and Path(value(words, "dataset")).is_file()
    )
    assert Path(value(words, "output_dir")).is_dir() and value(words, "output_dir") in done.stderr


def test_a_job_of_many_nodes_around_it_is_none_of_its_business(programs: str, tmp_path: Path) -> None:
    """With PET_NNODES=2, as Kubeflow's PyTorchJob sets it, torchrun would wait for a second node."""
    outer = {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "other",
        "RANK": "1",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "1",
        "NODE_RANK": "1",
        "MASTER_ADDR": "other",
        "MASTER_PORT": "29511",
    }
    (tmp_path / "bin" / "megatron").write_text("#!/bin/sh\nenv\n")

    done = run(tmp_path, path=programs, PYTHON=sys.executable, GPUS="2", CPU="0", SWIFT="4", **outer)

    assert done.returncode == 0, done.stderr
    assert {name for name in outer if f"\n{name}=" in f"\n{done.stdout}"} == {"MASTER_PORT"}


def test_a_fault_that_the_job_cannot_have_is_told_before_it_starts(programs: str, tmp_path: Path) -> None:
    done = run(
        tmp_path, path=programs, PYTHON=sys.executable, GPUS="1", CPU="0", SWIFT="4", FAULT="data-hang:rank=1"
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no rank 1" in done.stderr


def test_ms_swift_3_gets_its_weights_converted_once_without_the_fault(programs: str, tmp_path: Path) -> None:
    variables = {
        "PYTHON": sys.executable,
        "GPUS": "2",
        "CPU": "0",
        "SWIFT": "3",
        "DIAG_FAULT": "rank-crash",
        "ASSETS": str(tmp_path / "assets"),
    }

    first, second = (run(tmp_path, path=programs, **variables) for _ in range(2))

    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    starts = [line.split()[:2] for line in first.stdout.splitlines() if "=" not in line.split()[0]]
    assert starts == [["swift", "export"], ["megatron", "rlhf"]]
    assert [line for line in first.stdout.splitlines() if line.startswith(("NPROC", "DIAG_FAULT"))] == [
        "NPROC_PER_NODE=unset",
        "DIAG_FAULT=unset",
        "NPROC_PER_NODE=2",
        "DIAG_FAULT=rank-crash",
    ]
    assert "swift export" not in second.stdout


def test_a_conversion_that_is_broken_off_is_not_trained_from(programs: str, tmp_path: Path) -> None:
    assets = tmp_path / "as sets"
    variables = {"PYTHON": sys.executable, "GPUS": "2", "CPU": "0", "SWIFT": "3", "ASSETS": str(assets)}

    first = run(tmp_path, path=programs, FAILS="1", **variables)
    left = sorted(path.name for path in assets.iterdir() if "mcore" in path.name)
    second = run(tmp_path, path=programs, **variables)

    assert (first.returncode, left) == (1, [])
    assert second.returncode == 0 and "swift export" in second.stdout
    assert [path.name for path in assets.iterdir() if "mcore" in path.name] == ["qwen3-moe-small-mcore"]


def test_models_of_ones_own_are_converted_each_to_its_place(tmp_path: Path) -> None:
    places = {
        value(command(tmp_path, SWIFT="3", **own), "load")
        for own in (
            {},
            {"MODEL": "/models/a b"},
            {"MODEL": "/other/a b"},
            {"MODEL": "/models/a b", "MCORE_MODEL": "/m"},
        )
    }

    assert len(places) == 4 and "/m" in places


def test_a_cache_that_cannot_be_written_is_told_or_gone_without(programs: str, tmp_path: Path) -> None:
    (tmp_path / "bin" / "megatron").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "pairs.jsonl").touch()
    # below a file nobody can make a folder, root neither: as in a home that is read-only, or another user's
    assets = str(tmp_path / "pairs.jsonl" / "assets")
    variables = {"PYTHON": sys.executable, "GPUS": "1", "CPU": "0", "SWIFT": "4", "ASSETS": assets}

    made = run(tmp_path, path=programs, **variables)
    own = run(
        tmp_path, path=programs, MODEL=str(tmp_path), DATASET=str(tmp_path / "pairs.jsonl"), **variables
    )

    assert made.returncode == 1 and "cannot be written" in made.stderr and "hint: " in made.stderr
    assert "Traceback" not in made.stderr
    assert own.returncode == 0 and "HF_HUB_OFFLINE=1" in own.stdout
    assert "HF_HOME" not in own.stdout and "MODELSCOPE_CACHE" not in own.stdout
