"""`diag estimate` as people and scripts call it: text, diag.estimate/1, exit codes, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diag.agent.samplers.estimate import estimate_watched
from diag.cli.main import main
from diag.launch.launchers.command import CommandError
from diag.model import Record
from diag.model.observations import MemoryEstimated
from diag.preflight.estimate import parse_size
from diag.sources import estimate as source

DPO = [
    "megatron",
    "rlhf",
    "--rlhf_type",
    "dpo",
    "--model",
    "Qwen/Qwen3-30B-A3B",
    "--max_length",
    "2048",
    "--tensor_model_parallel_size",
    "2",
    "--expert_model_parallel_size",
    "8",
    "--sequence_parallel",
    "true",
]
LARGE = ["--gpu-memory", "200GiB", "--host-memory", "4TiB"]


@pytest.fixture(autouse=True)
def eight_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "8")
    monkeypatch.delenv("NNODES", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")  # no ms-swift is installed beside any program


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["estimate", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_json_has_the_shape_of_diag_estimate_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, estimated = document(capsys, *LARGE, "--", *DPO)
    assert code == 0
    assert set(estimated) == {
        "schema",
        "basis",
        "model",
        "layout",
        "gpu",
        "host",
        "checkpoint_bytes",
        "batch",
        "trust",
        "speed",
        "fits",
        "advice",
        "combination",
        "rules_of_thumb",
        "assumed",
        "unknown_flags",
    }
    assert estimated["schema"] == "diag.estimate/1"
    assert estimated["model"] == {"name": "Qwen/Qwen3-30B-A3B", "parameters": 30_532_122_624}
    assert estimated["layout"] == {
        "nodes": 1,
        "processes": 8,
        "tp": 2,
        "pp": 1,
        "cp": 1,
        "dp": 4,
        "ep": 8,
        "etp": 1,
    }
    for part, lists in (("gpu", ["terms"]), ("host", ["terms", "save_terms"])):
        for name in lists:
            assert all(
                set(term) == {"name", "bytes", "formula", "source"} and term["bytes"] >= 0
                for term in estimated[part][name]
            )
        assert estimated[part]["verdict"] in ("fits", "tight", "does not fit", "unknown")
        assert 0 < estimated[part]["uncertainty"] < 1
    assert estimated["gpu"]["bytes"] == sum(term["bytes"] for term in estimated["gpu"]["terms"])
    assert estimated["host"]["peak_bytes"] == estimated["host"]["bytes"] + estimated["host"]["save_bytes"]
    assert {"flags", "gpu_bytes", "host_bytes", "cost"} == set(estimated["advice"][0])


@pytest.mark.parametrize(
    ("sizes", "code", "gpu", "host"),
    [
        (["--gpu-memory", "200GiB", "--host-memory", "4TiB"], 0, "fits", "fits"),
        (["--gpu-memory", "103GiB", "--host-memory", "4TiB"], 0, "tight", "fits"),
        (["--gpu-memory", "80GiB", "--host-memory", "4TiB"], 10, "does not fit", "fits"),
        (["--gpu-memory", "200GiB", "--host-memory", "300GiB"], 10, "fits", "does not fit"),
    ],
)
def test_the_exit_code_is_10_only_where_it_does_not_fit(
    sizes: list[str], code: int, gpu: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, estimated = document(capsys, *sizes, "--", *DPO)
    assert (got, estimated["gpu"]["verdict"], estimated["host"]["verdict"], estimated["fits"]) == (
        code,
        gpu,
        host,
        code == 0,
    )


def test_text_says_each_term_the_totals_the_verdicts_and_what_would_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["estimate", "--gpu-memory", "80GiB", "--host-memory", "4TiB", "--sources", "--", *DPO])
    text = capsys.readouterr().out
    assert code == 10
    for words in (
        "30.5B parameters",
        "TP 2 PP 1 CP 1 DP 4 EP 8",
        "reference model",
        "logits and loss",
        "staged shards",
        "does not fit: ",
        "+- 15 %",
        "the cheapest ways to less GPU memory",
        "with --no_save_optim true",
        "rules of thumb",
        "distrib_optimizer.py",
    ):
        assert words in text
    assert "\x1b" not in text


def test_without_a_gpu_nothing_is_said_to_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diag.preflight.estimate import machine

    monkeypatch.setattr(machine, "_gpus_seen", list)
    code, estimated = document(capsys, "--", *DPO)
    assert code == 0
    assert estimated["gpu"]["verdict"] == "unknown" and estimated["gpu"]["available_bytes"] is None
    assert estimated["host"]["verdict"] == "unknown"  # a laptop's memory is not the node's


def test_a_job_without_gpus_is_held_against_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diag.preflight.estimate import machine

    monkeypatch.setattr(machine, "_gpus_seen", list)
    monkeypatch.setattr(machine, "_host_seen", lambda: (1 << 30, "memory of this host"))
    code, estimated = document(capsys, "--", *DPO, "--ddp_backend", "gloo")
    assert code == 10
    assert estimated["host"]["verdict"] == "does not fit" and estimated["gpu"]["terms"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command given"),
        (["--", "megatron", "rlhf", "--model", "acme/Rocket"], "is not known"),
        (["--", "sleep", "5"], "does not name a model"),
        (["--gpu-memory", "much", "--", *DPO], "not a memory size"),
        (["--gpus-per-node", "0", "--", *DPO], "--gpus-per-node is 0"),
        (["--nodes", "-1", "--", *DPO], "--nodes is -1"),
    ],
)
def test_what_cannot_be_estimated_is_an_error_of_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and "hint: " in error


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 << 30), ("80 gb", 80 << 30), ("1.5T", 1536 << 30), ("512m", 512 << 20)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1G", "1e9", "80 GiB x", "G", "1" * 40])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(CommandError):
        parse_size(text)


def test_diag_estimate_imports_neither_torch_nor_transformers() -> None:
    code = """
import sys
from diag.cli.main import main
main("estimate --gpu-memory 1T --host-memory 9T -- megatron sft --model Qwen3-8B --max_length 64".split())
sys.exit(int(any(name in sys.modules for name in ("torch", "transformers", "numpy"))))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def record_of(*words: str, folder: Path, environment: dict[str, str]) -> list[Record]:
    """What is put for a process that stands in `folder` with this environment."""
    found: list[Record] = []
    env = {**os.environ, **environment}
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=folder, env=env
    ) as process:
        estimate_watched(words, process.pid, found.append, "node0").join(30)
        process.kill()
    return found


def test_a_watched_job_is_estimated_from_its_own_environment_and_folder(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
    }
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config))
    found = record_of(
        "megatron",
        "sft",
        "--model",
        "tiny",
        "--max_length",
        "64",
        folder=tmp_path,
        environment={"NPROC_PER_NODE": "4"},
    )
    estimated = list(source.parse(Record.from_json(json.loads(json.dumps(found[0].to_json())))))
    assert len(estimated) == 1 and isinstance(estimated[0], MemoryEstimated)
    assert "4 ranks on 1 node" in estimated[0].basis
    assert (
        estimated[0].gpu_bytes > 0
        and estimated[0].host_bytes > 0
        and estimated[0].save_bytes > 0
        and estimated[0].checkpoint_bytes
    )


def test_a_rank_is_estimated_from_its_own_command_line(tmp_path: Path) -> None:
    script = tmp_path / "swift" / "cli" / "_megatron" / "sft.py"
    script.parent.mkdir(parents=True)
    script.write_text("input()\n")
    env = {**os.environ, "RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    words = [sys.executable, str(script), "--model", "Qwen/Qwen3-0.6B", "--max_length", "64"]
    found: list[Record] = []
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=env) as process:
        estimate_watched(None, process.pid, found.append).join(30)
        process.kill()
    assert "2 ranks on each of 2 nodes, 4 in all" in found[0].payload["basis"]


def test_a_command_that_trains_nothing_puts_nothing(tmp_path: Path) -> None:
    assert record_of("sleep", "5", folder=tmp_path, environment={}) == []


def test_a_job_that_has_ended_puts_nothing() -> None:
    found: list[Record] = []
    estimate_watched(DPO, 2**30, found.append).join(30)
    assert found == []
