"""GPU core dumps in a folder of evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.engine.replay import replay
from diag.text.errors import DiagError
from tests.gpucore import captured
from tests.loose import LOOSE, judged

_STUCK = """Process {pid}: /usr/bin/python3 /app/train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread {pid} (active): "MainThread"
    synchronize (torch/cuda/__init__.py:1162)
    train (/app/train.py:76)
    <module> (/app/train.py:83)
"""


def stuck(into: Path, cores: dict[str, str], pids: tuple[int, int] = (1145, 1146)) -> Path:
    """Two ranks that stand in synchronize, looked at twice, and core dumps of H200s by these names."""
    for rank, pid in enumerate(pids):
        for number in (1, 2):
            (into / f"pyspy_rank{rank}_{number}.txt").write_text(_STUCK.format(pid=pid))
    for name, capture in cores.items():
        (into / name).write_bytes(captured(capture))
    return into


def test_gpu_core_dumps_tell_a_kernel_that_does_not_end_from_the_wait_for_it(tmp_path: Path) -> None:
    hang = judged(stuck(tmp_path, {"core.gpu-3.1145": "nccl_wait", "core.gpu-3.1146": "own_kernel"}))["hang"]

    assert (hang.klass, hang.ranks, hang.waiting_ranks, hang.cause) == (
        "gpu_side",
        (1,),
        (0,),
        "kernel_does_not_end",
    )
    assert any(
        item.kind == "cuda_coredump" and "user_endless_kernel" in item.excerpt for item in hang.evidence
    )


def test_two_ranks_that_both_wait_in_nccl_are_not_blamed(tmp_path: Path) -> None:
    assert judged(stuck(tmp_path, {"rank0.nvcudmp": "nccl_wait", "rank1.nvcudmp": "nccl_wait"})) == {}


def test_gpu_core_dump_of_nobody_known_and_a_torn_one_are_told(tmp_path: Path) -> None:
    folder = stuck(tmp_path, {"core.gpu-3.99": "own_kernel", "core_rank0": "nccl_wait"})
    (folder / "core_rank0").write_bytes(captured("nccl_wait")[:3000])

    _, _, notes = replay([folder])

    assert any("core.gpu-3.99: of which rank is not known" in note for note in notes)
    assert any("core_rank0: the GPU core dump cannot be read: it is cut off" in note for note in notes)
    assert any("core.gpu-3.99" in note and "its GPU ran user_endless_kernel" in note for note in notes)


@pytest.mark.parametrize(
    ("pids", "names"),
    [
        ((34, 34), ("core.pod-0.34", "core.pod-1.34")),  # each pod counts its own pids
        ((27, 34), ("core.pod-27.34", "core.pod-8.27")),  # the first is of either, by its numbers
    ],
)
def test_gpu_core_dump_that_may_be_of_two_ranks_is_of_nobody_known(
    pids: tuple[int, int], names: tuple[str, str], tmp_path: Path
) -> None:
    folder = stuck(tmp_path, {names[0]: "own_kernel", names[1]: "nccl_wait"}, pids)

    _, _, notes = replay([folder])

    assert any(f"{names[0]}: of which rank is not known" in note for note in notes)
    assert judged(folder) == {}


def test_what_the_dump_did_to_the_job_does_not_hide_why_it_hung(tmp_path: Path) -> None:
    folder = stuck(tmp_path, {"core.gpu-3.1145": "nccl_wait", "core.gpu-3.1146": "own_kernel"})
    log = (LOOSE.parent / "gpu" / "cuda_coredump.txt").read_text()
    (folder / "job.log").write_text(f"[INFO:swift] The training of Epoch 0 starts...\n{log}")

    found = judged(folder)

    assert list(found) == ["hang"] and found["hang"].cause == "kernel_does_not_end"


def test_log_without_core_dumps_beside_it_is_read_to_its_end(tmp_path: Path) -> None:
    folder = stuck(tmp_path, {})
    (folder / "job.log").write_text((LOOSE.parent / "gpu" / "cuda_coredump.txt").read_text())

    assert {"gpu-fault", "rank-died"} <= judged(folder).keys()


def test_core_dump_given_as_a_log_is_told_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "core.1145").write_bytes(captured("nccl_wait"))

    with pytest.raises(DiagError, match="core dump of a GPU"):
        replay([tmp_path / "core.1145"])
