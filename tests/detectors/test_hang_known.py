"""Known troubles at a hang: told beside the verdict, which they never change, and only where versions and something else fit."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest

from diag.engine.replay import replay
from diag.knowledge.known_troubles import Facts, packages_of, troubles
from diag.model import Finding
from diag.model.observations import (
    EnvironmentSeen,
    NativeFramesRead,
    NcclLine,
    NcclVersion,
    RunStarted,
    SoftwareSeen,
    VersionSeen,
)
from diag.outputs.chinese import of_finding
from diag.outputs.report import report
from diag.sources.stacks import native
from tests.facts import ALL_REDUCE, DATA, Story, pid_of

SWAP = (
    "<module> train.py:10",
    "synchronize_reads /env/lib/python3.12/site-packages/deepspeed/runtime/swap_tensor/partitioned_param_swapper.py:217",
)
LOOSE = Path(__file__).parents[1] / "captures" / "loose"
APPEND = "ncclLocalOpAppend(ncclComm*, ncclProxyConnector*, ncclProxyOp*) libnccl.so.2"


def nccl(version: str) -> NcclVersion:
    return NcclVersion(
        None, NcclLine(None, "node-0", 1, 1, 0, "INFO", f"NCCL version {version}+cuda13.0"), version
    )


def hang(
    *facts: object,
    stacks: dict[int, Sequence[str]] | None = None,
    machine: str = "aarch64",
    words: Sequence[str] = ("torchrun", "train.py"),
    late: Sequence[object] = (),
) -> Finding:
    story = Story()
    story.tell(RunStarted(None, tuple(words), 999, "node-0", 2, machine=machine))
    story.tell(*facts)  # type: ignore[arg-type]
    standing = stacks or {0: ALL_REDUCE, 1: ALL_REDUCE}
    story.still(60, standing)
    story.tell(*late)  # type: ignore[arg-type]
    story.still(560, standing)
    return story.hang()


def told(finding: Finding) -> list[str]:
    return [one.excerpt for one in finding.evidence if one.kind == "known_trouble"]


def test_native_frame_and_version_and_machine_name_the_trouble_with_its_source() -> None:
    finding = hang(nccl("2.28.9"), late=[NativeFramesRead(1, pid_of(1), (APPEND,))])

    (said,) = told(finding)
    assert said.startswith(
        "Known trouble nccl-proxy-slots-leak fits [NCCL 2.28.9, aarch64, rank 1: ncclLocalOpAppend]: "
    )
    assert said.endswith("fixed in NCCL 2.29.3; see https://github.com/NVIDIA/nccl/issues/2353")
    assert finding.advice.endswith(f"{said}.")


def test_it_changes_nothing_of_the_verdict() -> None:
    without = hang(nccl("2.29.3"), late=[NativeFramesRead(1, pid_of(1), (APPEND,))])
    known = hang(nccl("2.28.9"), late=[NativeFramesRead(1, pid_of(1), (APPEND,))])

    assert told(without) == []
    assert replace(known, advice=without.advice, evidence=without.evidence) == without
    assert known.advice.startswith(without.advice)


@pytest.mark.parametrize(
    ("facts", "machine", "frames"),
    [
        pytest.param([nccl("2.28.9")], "aarch64", (), id="version and machine alone"),
        pytest.param([nccl("2.28.9")], "x86_64", (APPEND,), id="another machine"),
        pytest.param([nccl("2.28.9")], "", (APPEND,), id="machine not known"),
        pytest.param([], "aarch64", (APPEND,), id="version not known"),
        pytest.param([nccl("2.28.9")], "aarch64", ("ncclGroupEnd libnccl.so.2",), id="another frame"),
    ],
)
def test_less_than_all_of_it_is_silent(facts: list[object], machine: str, frames: tuple[str, ...]) -> None:
    assert told(hang(*facts, machine=machine, late=[NativeFramesRead(1, pid_of(1), frames)])) == []


def test_native_frames_of_before_the_hang_tell_nothing_of_it() -> None:
    story = Story()
    story.tell(
        RunStarted(None, ("torchrun", "train.py"), 999, "node-0", 2, machine="aarch64"), nccl("2.28.9")
    )
    story.tell(NativeFramesRead(1, pid_of(1), (APPEND,)))
    story.still(60, {0: DATA, 1: DATA})
    story.still(600, {0: ALL_REDUCE, 1: ALL_REDUCE})

    assert told(story.hang()) == []


def test_python_frame_and_version_of_the_log() -> None:
    stacks = {0: ALL_REDUCE, 1: SWAP}

    (said,) = told(hang(VersionSeen(None, "deepspeed", "0.17.5"), stacks=stacks))
    assert said.startswith(
        "Known trouble deepspeed-aio-wait fits [DeepSpeed 0.17.5, rank 1: synchronize_reads]: "
    )
    assert told(hang(VersionSeen(None, "deepspeed", "0.18.4"), stacks=stacks)) == []


@pytest.mark.parametrize(("version", "count"), [("0.17.5", 1), ("0.18.4", 0), ("0.17.5 and 0.18.4", 0)])
def test_version_of_the_package_beside_the_loaded_libraries_is_one(version: str, count: int) -> None:
    """Of a program whose log names no version."""
    seen = SoftwareSeen(0, pid_of(0), "3.12.1", "6.1.0", "", (("deepspeed", version),))

    assert len(told(hang(seen, stacks={0: ALL_REDUCE, 1: SWAP}))) == count


def test_variable_may_be_it_where_all_wait_and_not_where_a_rank_is_elsewhere() -> None:
    variables = [
        EnvironmentSeen(rank, pid_of(rank), (("TORCH_NCCL_USE_COMM_NONBLOCKING", "1"),)) for rank in (0, 1)
    ]
    facts = [nccl("2.26.2"), *variables]

    (said,) = told(hang(*facts, machine="x86_64"))
    assert said.startswith(
        "Known trouble nccl-nonblocking-2.26 may be this hang [NCCL 2.26.2, TORCH_NCCL_USE_COMM_NONBLOCKING=1]: "
    )
    assert told(hang(*facts, stacks={0: ALL_REDUCE, 1: DATA}, machine="x86_64")) == []


def test_advice_in_chinese_has_all_of_it() -> None:
    finding = hang(nccl("2.28.9"), late=[NativeFramesRead(1, pid_of(1), (APPEND,))])
    shown = of_finding({"id": finding.id, "cause": finding.cause, "advice": finding.advice}, "advice")

    assert (
        "已知问题 nccl-proxy-slots-leak 与此吻合 [NCCL 2.28.9, aarch64, rank 1: ncclLocalOpAppend]：" in shown
    )
    assert "Known trouble" not in shown


# -- replay


@pytest.mark.parametrize(
    ("version", "frame", "fits"),
    [
        ("2.28.9", "ncclLocalOpAppend (libnccl.so.2)", True),
        ("2.29.3", "ncclLocalOpAppend (libnccl.so.2)", False),
        ("2.28.9", "clock_nanosleep (libc.so.6)", False),
    ],
)
def test_folder_with_native_stacks_and_a_log_that_has_the_version(
    tmp_path: Path, version: str, frame: str, fits: bool
) -> None:
    """Evidence of an H200 machine, made over into that of an ARM one."""
    folder = shutil.copytree(LOOSE / "skip_collective", tmp_path / "evidence")
    native = folder / "pyspy_rank1.native.txt"
    text = native.read_text().replace("clock_nanosleep (libc.so.6)", frame)
    native.write_text(
        text.replace("(libc.so.6)", "(/usr/lib/aarch64-linux-gnu/libc.so.6)").replace(
            "0x7f5ef962a1ca", "main"
        )
    )
    for log in folder.glob("rank*.log"):
        log.write_text(log.read_text().replace("NCCL version 2.28.9", f"NCCL version {version}"))

    engine, _, _ = replay([folder])
    (finding,) = [one for one in report(engine)["findings"] if one["id"] == "hang"]

    assert ("Known trouble nccl-proxy-slots-leak fits" in finding["advice"]) == fits
    assert ("known_trouble" in {one["kind"] for one in finding["evidence"]}) == fits
    assert (finding["class"], finding["cause"], finding["ranks"]) == (
        "peer_not_joined",
        "not_in_collective",
        [1],
    )


def test_evidence_as_it_was_captured_shows_no_known_trouble() -> None:
    engine, _, _ = replay([LOOSE / "skip_collective"])

    assert engine.job.ranks[1].native
    assert "Known trouble" not in json.dumps(report(engine))


def test_no_capture_shows_one() -> None:
    """What `diag replay` prints of each capture is kept."""
    kept = sorted((Path(__file__).parents[1] / "goldens" / "kept").glob("*.txt"))

    assert kept
    assert [path.name for path in kept if "Known trouble" in path.read_text()] == []


def test_this_machine_has_none_that_is_sure() -> None:
    installed = {one.name.lower(): one.version for one in distributions()}
    facts = Facts(packages_of(installed), platform.machine(), dict(os.environ))

    assert [
        one.id
        for one in troubles().values()
        if one.fits_before_the_run(facts) and one.is_conditional and not one.needs
    ] == []


def test_what_py_spy_found_comes_to_the_rank_without_python_and_nameless_frames() -> None:
    frames = [
        {"name": "ncclLocalOpAppend", "filename": "/opt/nccl/libnccl.so.2", "line": 0},
        {"name": "0x7fb7899dfe19", "filename": "libcuda.so.580.159.04", "line": 0},
        {"name": "train", "filename": "/app/train.py", "line": 30},
    ]
    record = native.record([{"frames": frames}, {"frames": frames}], 812, 1, "node-0")

    assert [*native.parse(record)] == [
        NativeFramesRead(1, 812, ("ncclLocalOpAppend /opt/nccl/libnccl.so.2",))
    ]
