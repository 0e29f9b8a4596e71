"""What doctor says of known troubles: a problem only where all is seen, nothing of a Python that is not the job's."""

from __future__ import annotations

from dataclasses import replace

from diag.preflight.line import Line
from diag.preflight.software.known import check_known
from diag.preflight.software.target import used_by
from tests.preflight.test_software_fits import RUNS, software, target

TORCH = {"torch": "2.9.1+cu128", "nvidia-nccl-cu12": "2.28.9", "nvidia-cudnn-cu12": "9.16.0.29"}


def lines(
    installed: dict[str, str], *words: str, machine: str = "x86_64", env: dict[str, str] | None = None
) -> list[Line]:
    there = software(installed, torch_cuda="12.8")
    there = replace(there, markers={**there.markers, "platform_machine": machine})
    what = replace(target(*(words or ("torchrun", "train.py")), env=env), launcher="torchrun")
    return list(check_known(what, there, used_by(what)))


def test_nccl_of_an_arm_machine_is_a_problem_with_its_source() -> None:
    (line,) = lines(TORCH, machine="aarch64")

    assert (line.status, line.id) == ("problem", "version-mismatch")
    assert line.said.startswith("NCCL 2.28.9, aarch64: NCCL loses slots of proxy operations on aarch64")
    assert line.said.endswith("(nccl-proxy-slots-leak, https://github.com/NVIDIA/nccl/issues/2353)")
    assert line.remedy == "fixed in NCCL 2.29.3"


def test_versions_that_run_are_ok() -> None:
    (line,) = lines({**TORCH, "nvidia-nccl-cu12": "2.32.3"})

    assert line.status == "ok"
    assert line.said.startswith("none of ")


def test_variable_that_hangs_is_a_problem_and_another_value_of_it_is_not() -> None:
    bad = lines(TORCH, env={"NCCL_NCHANNELS_PER_NET_PEER": "32"})
    good = lines(TORCH, env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})

    assert [line.status for line in bad] == ["problem"]
    assert [line.status for line in good] == ["ok"]


def test_what_needs_more_than_can_be_seen_is_a_note_and_a_version_alone_is_only_named() -> None:
    older = {**TORCH, "torch": "2.7.0+cu126", "nvidia-nccl-cu12": "2.26.2"}
    (note,) = lines(older)
    (quiet,) = lines({**TORCH, "nvidia-nccl-cu12": "2.30.7"})

    assert note.status == "note"
    assert "torch 2.7.0+cu126: NCCL then runs in non-blocking mode" in note.said
    assert note.remedy == "`diag explain torch-device-id-2.7.0`"
    assert (quiet.status, "nccl-pxn-teardown" in quiet.said) == ("ok", True)


def test_workaround_that_is_set_silences_it() -> None:
    older = {**TORCH, "torch": "2.7.0+cu126", "nvidia-nccl-cu12": "2.26.2"}

    assert [line.status for line in lines(older, env={"TORCH_NCCL_USE_COMM_NONBLOCKING": "0"})] == ["ok"]


def test_flag_of_cmd_counts() -> None:
    old = {**TORCH, "megatron-core": "0.15.3"}

    with_flag = lines(old, "torchrun", "pretrain_gpt.py", "--use-megatron-fsdp", machine="x86_64")
    assert any("megatron-fsdp-order" in line.said for line in with_flag if line.status != "ok")
    assert not any("megatron-fsdp-order" in line.said for line in lines(old) if line.status != "ok")


def test_nccl_without_a_wheel_is_not_checked_once() -> None:
    found = lines({"torch": "2.9.1+cu128"})

    assert [line.status for line in found] == ["not checked", "ok"]
    assert "no wheel of NCCL" in found[0].said


def test_torch_without_cuda_has_no_nccl_to_ask_for() -> None:
    what = replace(target("torchrun", "train.py"), launcher="torchrun")

    assert [line.status for line in check_known(what, software(RUNS), used_by(what))] == ["ok"]


def test_of_another_python_nothing_is_said() -> None:
    what = replace(target("docker", "run", "image"), unfit="`docker` runs CMD elsewhere")

    assert list(check_known(what, software(TORCH, torch_cuda="12.8"), None)) == []
