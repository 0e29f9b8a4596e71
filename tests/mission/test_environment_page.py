"""`diag doctor --env`: variables as guides and chats hand them on, each with what it really does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from diag.cli.main import main
from diag.preflight.environment_page import check_variables
from diag.preflight.line import Line
from diag.preflight.network import check_environment
from diag.preflight.plan import make_plan
from tests.mission.cases import Case, printed

NAMES = "NCCL_TIMEOUT NCCL_BLOCKING_WAIT NCCL_IB_DISABLE NCCL_SOCKET_IFNAME WORLD_SIZE RANK"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Packages whose text tells who reads what."""
    texts = {
        "swift/utils/utils.py": "def get_env_args(name): ...\n\nframes = get_env_args(\n    'fps_max_frames')\n",
        "swift/arguments/sft_args.py": "class SftArguments:\n    max_length: int = 2048\n    dataloader_num_workers: int = 0\n",
        "swift/cli/main.py": "import os\nif os.environ.get('SWIFT_SINGLE_DEVICE_MODE'): ...\n",
        "transformers/trainer.py": "names = ['SOME_WORD']\n\n\n\nimport os\nos.environ\n",
    }
    for name, text in texts.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site-packages"


def page(site: Path, *command: str, **env: str) -> dict[str, Line]:
    found = {line.what: line for line in check_variables(command, env, [site])}
    assert all(line.said for line in found.values())
    return found


SWIFT = ("swift", "sft", "--model", "m")
ON_TWO = ("env", "NPROC_PER_NODE=8", "NNODES=2", "MASTER_ADDR=192.0.2.1", *SWIFT)


BLOCK = {
    "NCCL_TIMEOUT": "1800", "NCCL_BLOCKING_WAIT": "1", "NCCL_SOCKET_IFNAME": "lo", "WORLD_SIZE": "1", "RANK": "0",
    "NCCL_TREE_THRESHOLD": "0", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_DEBUG_SUBSYS": "ALL",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}  # fmt: skip
ALONE = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NUM_WORKERS": "1"}


def said(command: tuple[str, ...], env: dict[str, str]) -> list[str]:
    lines = check_variables(command, env, [])
    return [f"{line.status}: {line.what}: {line.said} -> {line.remedy}" for line in lines]


CASES = {
    "a chat's block": Case(
        (13,), "NCCL_TIMEOUT, NCCL_BLOCKING_WAIT, NCCL_TREE_THRESHOLD, NCCL_SOCKET_IFNAME=lo, RANK and WORLD_SIZE, for two nodes",
        "diag doctor --env -- CMD", lambda: said(ON_TWO, BLOCK),
        ("NCCL_TIMEOUT: 1800 (this environment): neither NCCL nor torch reads it", "problem: NCCL_SOCKET_IFNAME: lo",
         "--ddp_timeout", "gives each rank its own"),
    ),
    "variables alone": Case(
        (13,), "NCCL_SOCKET_IFNAME=lo and NCCL_IB_DISABLE=1 in a shell, without the command", "diag doctor --env",
        lambda: said((), ALONE),
        ("not checked: NCCL_SOCKET_IFNAME: lo (this environment): ", "not checked: NCCL_IB_DISABLE: 1", "diag doctor --env -- CMD"),
        ("ok: NCCL_SOCKET_IFNAME", "ok: NCCL_IB_DISABLE"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


def test_block_that_a_chat_gave_is_taken_apart(site: Path) -> None:
    found = page(site, *ON_TWO, **BLOCK)

    wrong = {name for name, line in found.items() if line.status == "problem"}
    assert wrong == {
        "NCCL_TIMEOUT",
        "NCCL_BLOCKING_WAIT",
        "NCCL_SOCKET_IFNAME",
        "NCCL_TREE_THRESHOLD",
        "TORCH_DISTRIBUTED_DEBUG",
    }
    assert "neither NCCL nor torch reads it" in found["NCCL_TIMEOUT"].said
    assert "--ddp_timeout" in found["NCCL_TIMEOUT"].remedy
    assert "NCCL 2.5 and later" in found["NCCL_TREE_THRESHOLD"].said
    assert "loopback" in found["NCCL_SOCKET_IFNAME"].said
    for name in ("WORLD_SIZE", "RANK"):
        assert found[name].status == "note" and "gives each rank its own" in found[name].said
    assert found["NCCL_DEBUG_SUBSYS"].status == "note"
    assert found["CUBLAS_WORKSPACE_CONFIG"].status == "ok"
    assert "read by ms-swift" in found["NPROC_PER_NODE"].said and "(CMD)" in found["NPROC_PER_NODE"].said


def test_names_that_nothing_reads_are_told_with_the_flag_that_is_meant(site: Path) -> None:
    found = page(site, *SWIFT, NUM_WORKERS="1", SKIP_PREPROCESS="true")

    assert {found[name].status for name in ("NUM_WORKERS", "SKIP_PREPROCESS")} == {"problem"}
    assert "--dataloader_num_workers" in found["NUM_WORKERS"].remedy
    assert "swift" in found["NUM_WORKERS"].said and found["NUM_WORKERS"].id == "env-no-effect"


def test_doctor_itself_tells_of_such_a_name_where_ms_swift_is_started() -> None:
    env = {"NUM_WORKERS": "1", "SKIP_PREPROCESS": "true"}

    notes = [line for line in check_environment(make_plan(SWIFT, env, 0.0)) if line.status == "note"]

    assert ["NUM_WORKERS=1" in notes[0].said, "SKIP_PREPROCESS=true" in notes[1].said] == [True, True]
    assert "--dataloader_num_workers" in notes[0].remedy
    script = check_environment(make_plan(["torchrun", "t.py"], env, 0.0))
    assert [line.status for line in script] == ["ok"]  # it may read them


def test_script_that_reads_such_a_name_itself_is_believed(site: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nworkers = int(os.environ['NUM_WORKERS'])\n")

    found = page(site, "torchrun", "--nproc_per_node", "2", str(script), NUM_WORKERS="1", SKIP_PREPROCESS="1")

    assert found["NUM_WORKERS"].status == "ok" and f"{script}:2" in found["NUM_WORKERS"].said
    assert found["SKIP_PREPROCESS"].status == "problem"


def test_name_that_no_table_has_is_looked_up_in_the_text_of_the_packages(site: Path) -> None:
    found = page(
        site, "env", "MAX_LENGTH=4096", "MY_SWITCH=1", "SOME_WORD=1", "SWIFT_SINGLE_DEVICE_MODE=1", *SWIFT,
        FPS_MAX_FRAMES="16", EDITOR="vi",
    )  # fmt: skip

    assert found["FPS_MAX_FRAMES"].status == "ok" and "swift/utils/utils.py:4" in found["FPS_MAX_FRAMES"].said
    assert "swift/cli/main.py:2" in found["SWIFT_SINGLE_DEVICE_MODE"].said
    assert found["MAX_LENGTH"].status == "problem" and "--max_length 4096" in found["MAX_LENGTH"].remedy
    assert found["SOME_WORD"].status == "not checked"
    assert found["MY_SWITCH"].status == "note" and "no reader known" in found["MY_SWITCH"].said
    assert "EDITOR" not in found  # of the person, not of the job


def test_misspelt_name_is_told_what_it_should_be(site: Path) -> None:
    found = page(site, *SWIFT, MODELSCOPE_CASHE="/data", NCCL_SOCKET_IFNAMES="eth0", NCCL_OFI_PROTOCOL="rdma")

    assert "did you mean MODELSCOPE_CACHE?" in found["MODELSCOPE_CASHE"].said
    assert "NCCL_SOCKET_IFNAME" in found["NCCL_SOCKET_IFNAMES"].said
    assert found["NCCL_OFI_PROTOCOL"].status == "not checked"


def test_without_the_packages_nothing_is_said_to_be_unread(tmp_path: Path) -> None:
    command = "docker run --network=host -e MY_SWITCH=1 -e NUM_WORKERS=2 -e NCCL_DEBUG=INFO image swift sft --model m".split()  # noqa: SIM905

    found = {line.what: line for line in check_variables(command, {"HF_HOME": "/data"})}

    assert found["MY_SWITCH"].status == "not checked" and "in the image" in found["MY_SWITCH"].said
    assert found["NCCL_DEBUG"].status == "ok"
    assert "HF_HOME" not in found  # of this shell, and not of the container
    assert found["variables"].status == "not checked"  # the image may set more


def test_caches_are_looked_at(site: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "file").touch()

    one = page(
        site,
        *SWIFT,
        MODELSCOPE_CACHE=str(kept),
        HF_HOME=str(tmp_path / "new"),
        TORCH_HOME=f"{tmp_path}/file/x",
    )
    two = page(site, *ON_TWO, MODELSCOPE_CACHE=str(kept))

    assert one["MODELSCOPE_CACHE"].status == "ok" and "not there" not in one["MODELSCOPE_CACHE"].said
    assert one["HF_HOME"].status == "ok" and "not there yet" in one["HF_HOME"].said
    assert one["TORCH_HOME"].status == "problem"
    assert two["MODELSCOPE_CACHE"].status in (
        "note",
        "ok",
    )  # ok where the test's folder is on a network file system
    if two["MODELSCOPE_CACHE"].status == "note":
        assert "each downloads and preprocesses into its own" in two["MODELSCOPE_CACHE"].said


def test_source_that_is_not_there_is_a_problem(site: Path, tmp_path: Path) -> None:
    gone = page(site, *SWIFT, MEGATRON_LM_PATH="/xxx/Megatron-LM")
    here = page(site, *SWIFT, MEGATRON_LM_PATH=str(tmp_path))

    assert gone["MEGATRON_LM_PATH"].status == "problem" and gone["MEGATRON_LM_PATH"].id == "missing-module"
    assert here["MEGATRON_LM_PATH"].status == "ok"


def test_launcher_that_does_not_read_ms_swifts_variables_is_named(site: Path) -> None:
    found = page(
        site,
        "env",
        "NNODES=2",
        "NPROC_PER_NODE=8",
        "MASTER_ADDR=a",
        "torchrun",
        "--nproc_per_node",
        "8",
        "t.py",
    )

    for name in ("NNODES", "NPROC_PER_NODE", "MASTER_ADDR"):
        assert found[name].status == "note" and "`torchrun` does not read it" in found[name].said
        assert "--nnodes" in found[name].remedy and "--nproc_per_node" in found[name].remedy


def test_secret_is_not_shown(site: Path) -> None:
    found = page(site, *SWIFT, HF_TOKEN="hf_abcdefghijklmnopqrstuvwxyz", MODELSCOPE_API_TOKEN="12345678-abcd")

    assert not [line for line in found.values() if "abcd" in line.said or "abcd" in line.remedy]
    assert "***" in found["HF_TOKEN"].said


def test_nothing_set_is_said() -> None:
    assert [line.status for line in check_variables((), {}, [])] == ["ok"]


def test_page_as_a_person_asks_for_it(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "diag", "doctor", "--env")
    env = {"PATH": "/usr/bin:/bin", "NCCL_TIMEOUT": "1800", "NCCL_DEBUG": "INFO"}

    text = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    with mock.patch.dict(os.environ, env, clear=True):
        document = json.loads("\n".join(printed("doctor", "--env", "--json")))

    assert text.returncode == 10 and text.stdout.splitlines()[-1] == "1 problem: NCCL_TIMEOUT"
    assert (
        "ok          NCCL_DEBUG: INFO (this environment)" in text.stdout
    )  # not folded: it is what was asked for
    assert [line["what"] for line in document["checks"]] == ["NCCL_DEBUG", "NCCL_TIMEOUT"]
    assert [one["id"] for one in document["findings"]] == ["env-no-effect"]


def test_it_is_not_combined_with_manifests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--env", "--manifest", "x.yaml"]) == 2
    assert "--env cannot be combined" in capsys.readouterr().err
