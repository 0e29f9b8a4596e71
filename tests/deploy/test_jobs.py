"""deploy/jobs: each script's command has only flags that its ms-swift takes, and diag reads it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.swift_flags import flags

HERE = Path(__file__).parent
JOBS = HERE.parents[1] / "deploy" / "jobs"
SCRIPTS = ("megatron-4.sh", "megatron-3.sh", "swift.sh")
GB = 10**9


def script(name: str, verb: str, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    data = tmp_path / "pairs.jsonl"
    data.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], '
        '"rejected_response": "c"}\n'
    )
    # Of this machine's environment only what programs need: NNODES or a rank's variables of a job around us
    # would count.
    env = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DATASET": str(data), **variables}
    return subprocess.run(
        ["bash", str(JOBS / name), verb],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )


def command(name: str, tmp_path: Path, **variables: str) -> list[str]:
    done = script(name, "print", tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def used(words: list[str]) -> set[str]:
    return {word.removeprefix("--") for word in words if word.startswith("--")}


def recorded(version: str) -> dict[str, frozenset[str]]:
    document = json.loads((HERE / f"ms-swift-{version}.json").read_text())
    assert version in document["from"]
    return {name: frozenset(" ".join(lines).split()) for name, lines in document.items() if name != "from"}


def installed() -> Path:
    if shutil.which("megatron", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("needs ms-swift (requirements/job.txt; make test installs it)")
    if importlib.metadata.version("ms-swift").partition(".")[0] != "4":
        pytest.skip(
            f"the scripts are for ms-swift 4, and {importlib.metadata.version('ms-swift')} is installed"
        )
    return Path(str(importlib.metadata.distribution("ms-swift").locate_file("")))


@pytest.mark.parametrize(
    ("name", "arguments"), [("megatron-4.sh", "MegatronRLHFArguments"), ("swift.sh", "RLHFArguments")]
)
def test_installed_ms_swift_takes_each_flag(name: str, arguments: str, tmp_path: Path) -> None:
    taken = flags(installed(), arguments)

    assert len(taken) > 300 and "rlhf_type" in taken
    assert used(command(name, tmp_path)) - taken == set()


@pytest.mark.parametrize("version", ["3.8.3", "3.12.6"])
def test_ms_swift_3_takes_each_flag_of_the_training_and_of_the_conversion(
    version: str, tmp_path: Path
) -> None:
    taken = recorded(version)
    convert = next(
        line for line in (JOBS / "megatron-3.sh").read_text().splitlines() if line.startswith("convert=(")
    )

    assert used(command("megatron-3.sh", tmp_path)) - taken["MegatronRLHFArguments"] == set()
    assert used(shlex.split(convert.removeprefix("convert=").strip("()"))) - taken["ExportArguments"] == set()
    assert used(command("swift.sh", tmp_path, TUNER_FLAG="--train_type")) - taken["RLHFArguments"] == set()


def test_first_ms_swift_4_takes_each_flag_too(tmp_path: Path) -> None:
    taken = recorded("4.0.4")

    assert used(command("megatron-4.sh", tmp_path)) - taken["MegatronRLHFArguments"] == set()
    assert used(command("swift.sh", tmp_path)) - taken["RLHFArguments"] == set()


def test_flags_of_3_and_4_differ_so_one_script_would_not_do(tmp_path: Path) -> None:
    assert used(command("megatron-4.sh", tmp_path)) - recorded("3.12.6")["MegatronRLHFArguments"] == {
        "tuner_type",
        "output_dir",
        "save_steps",
        "save_total_limit",
        "logging_steps",
        "num_train_epochs",
        "dataloader_num_workers",
    }
    taken = flags(installed(), "MegatronRLHFArguments")
    assert used(command("megatron-3.sh", tmp_path)) - taken >= {"load", "save", "train_type"}


def estimate(name: str, tmp_path: Path, nodes: int) -> dict[str, Any]:
    words = command(name, tmp_path)
    # No ms-swift on PATH: the flags alone tell its version, on every machine alike.
    env = {**os.environ, "PATH": "/usr/bin:/bin", "NNODES": str(nodes), "NPROC_PER_NODE": "8"}
    sizes = ["--gpu-memory", "80GB", "--host-memory", "1TB"]
    done = subprocess.run(
        [sys.executable, "-m", "diag", "estimate", "--json", *sizes, "--", *words],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 10), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("name", "nodes", "verdict", "figures"),  # of one GPU, of a node's host memory at a save, of a checkpoint
    [
        ("megatron-4.sh", 1, "fits", (69, 37, 61)),
        ("megatron-4.sh", 2, "fits", (57, 37, 61)),
        ("megatron-3.sh", 1, "tight", (85, 37, 61)),  # with 3.8.0 to 3.8.2
        ("megatron-3.sh", 2, "fits", (73, 37, 61)),
        ("swift.sh", 1, "fits", (27, 20, 1)),
    ],
)
def test_estimate_reads_the_command_whole_and_says_that_it_fits(
    name: str, nodes: int, verdict: str, figures: tuple[int, int, int], tmp_path: Path
) -> None:
    said = estimate(name, tmp_path, nodes)

    assert said["unknown_flags"] == []
    assert (said["gpu"]["verdict"], said["host"]["verdict"]) == (verdict, "fits")
    sizes = (said["gpu"]["bytes"], said["host"]["peak_bytes"], said["checkpoint_bytes"])
    assert tuple(round(size / GB) for size in sizes) == figures
    table = (JOBS / "README.md").read_text()
    assert f"| `{name}` | {nodes} x 8 | {figures[0]} | {figures[1]} | {figures[2]} |" in table


@pytest.mark.parametrize("name", SCRIPTS)
def test_estimate_and_doctor_run_from_the_script_itself(name: str, tmp_path: Path) -> None:
    said = script(name, "estimate", tmp_path)
    checked = script(name, "doctor", tmp_path, WAIT="0")

    assert "Qwen/Qwen3-30B-A3B (30.5B parameters), DPO" in said.stdout, said.stderr
    assert checked.returncode in (0, 10), checked.stderr
    assert "8 ranks on this node" in checked.stdout
    assert "rendezvous" in checked.stdout


def test_doctor_names_a_second_node_that_would_wait_for_itself(tmp_path: Path) -> None:
    checked = script("megatron-4.sh", "doctor", tmp_path, NNODES="2", NODE_RANK="1", WAIT="0")

    assert "127.0.0.1 (MASTER_ADDR) is each node's own loopback" in checked.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_wrong_verb_and_a_missing_data_set_are_told(name: str, tmp_path: Path) -> None:
    wrong = script(name, "estmate", tmp_path)
    missing = script(name, "print", tmp_path, DATASET="")

    assert wrong.returncode == 2 and "usage:" in wrong.stderr
    assert missing.returncode != 0 and "DATASET=pairs.jsonl" in missing.stderr
