"""GPU core dumps: two of an H200, and what the tables of the file may hold beside."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import GpuKernel, GpuKernels, Unparsed
from diag.sources.gpu import cuda_core
from diag.sources.gpu import cuda_coredump as source
from tests.gpucore import ALL_REDUCE, Grid, captured, core_dump

ENDLESS = "user_endless_kernel"


def grids_of(tmp_path: Path, data: bytes) -> list[tuple[str, list[int], list[int], int]]:
    path = tmp_path / "core"
    path.write_bytes(data)
    assert cuda_core.is_core_dump(data[:64])
    return [(row["name"], row["grid"], row["block"], row["blocks"]) for row in cuda_core.kernels(path)]


def test_rank_that_waits_in_nccl_and_one_whose_own_kernel_does_not_end_are_told_apart(tmp_path: Path) -> None:
    # what cuda-gdb 13.0 says of them: ncclDevKernel_AllReduce_Sum_f32_RING_LL (24,1,1) (544,1,1), 24 running;
    # user_endless_kernel (4,1,1) (128,1,1), 4 running
    assert grids_of(tmp_path, captured("nccl_wait")) == [(ALL_REDUCE, [24, 1, 1], [544, 1, 1], 24)]
    assert grids_of(tmp_path, captured("own_kernel")) == [(ENDLESS, [4, 1, 1], [128, 1, 1], 4)]


@pytest.mark.parametrize(
    "how", [{}, {"absolute": True}, {"counted_in_first": True}, {"entry_size": 116}, {"entry_size": 160}]
)
def test_kernels_are_named_from_the_tables_of_the_file(tmp_path: Path, how: dict[str, int]) -> None:
    data = core_dump(Grid(ALL_REDUCE, (24, 1, 1), (512, 1, 1), 24), Grid(ENDLESS), **how)

    assert grids_of(tmp_path, data) == [
        (ALL_REDUCE, [24, 1, 1], [512, 1, 1], 24),
        (ENDLESS, [4, 1, 1], [128, 1, 1], 4),
    ]


def test_grid_that_has_ended_runs_no_more(tmp_path: Path) -> None:
    assert grids_of(tmp_path, core_dump(Grid(ENDLESS, status=4))) == []
    assert grids_of(tmp_path, core_dump()) == []


def test_file_that_is_cut_anywhere_or_is_another_is_refused(tmp_path: Path) -> None:
    data = core_dump(Grid(ENDLESS))
    path = tmp_path / "core"
    for size in range(0, len(data), 61):
        path.write_bytes(data[:size])
        with pytest.raises(cuda_core.NoCoreDump):
            cuda_core.kernels(path)
    path.write_bytes(b"\x7fELF\x02\x01\x01\x00" + data[8:])
    with pytest.raises(cuda_core.NoCoreDump, match="not a core dump of a GPU"):
        cuda_core.kernels(path)


def test_damaged_file_never_breaks_the_reader(tmp_path: Path) -> None:
    data = core_dump(Grid(ALL_REDUCE), Grid(ENDLESS))
    path = tmp_path / "core"
    for place in range(16, len(data), 7):
        path.write_bytes(data[:place] + b"\xff\xff\xff\x7f" + data[place + 4 :])
        with contextlib.suppress(cuda_core.NoCoreDump):
            assert isinstance(cuda_core.kernels(path), list)


def test_sections_that_all_claim_the_whole_file_are_not_walked_through(tmp_path: Path) -> None:
    """256 kB of them: 40 million rows, 18 s; ten times as many would take half an hour."""
    number = 4000
    head = b"\x7fELF\x02\x01\x01\x33" + bytes(8)
    head += struct.pack("<HHIQQQIHHHHHH", 4, 0xBE, 1, 0, 0, 64, 0, 64, 0, 0, 64, number, 0)
    blocks = struct.pack("<IIQQQQIIQQ", 0, 0x8000000D, 0, 0, 0, 64 * number, 0, 0, 1, 24)
    path = tmp_path / "core"
    path.write_bytes(head + blocks * number)

    with pytest.raises(cuda_core.NoCoreDump, match="larger than the file"):
        cuda_core.kernels(path)


# --- as a record
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload", [None, {}, {"failed": "cut off"}, {"kernels": [{}]}, {"kernels": [{"name": "x", "grid": []}]}]
)
def test_payload_that_is_none_is_told_as_unparsed(payload: object) -> None:
    assert [type(fact) for fact in source.parse(Record(source.SOURCE, payload, rank=0))] == [Unparsed]


def test_names_are_told_without_their_types() -> None:
    assert source.kernel_name(ALL_REDUCE) == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert source.kernel_name("_ZN12_GLOBAL__N_14spinEv") == "spin"
    assert source.kernel_name("_Zxyz") == "_Zxyz" and source.kernel_name("") == ""


def test_file_becomes_the_kernels_of_a_rank(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(captured("nccl_wait"))

    (found,) = source.parse(Record(source.SOURCE, source.load_file(path), rank=3))

    assert found == GpuKernels(
        3, (GpuKernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (24, 1, 1), (544, 1, 1), 24),)
    )
    assert "failed" in source.load_file(tmp_path / "none")


def test_core_dump_that_is_cut_off_while_it_is_read_says_so_and_kills_nobody(tmp_path: Path) -> None:
    # in a process of its own: a page of a mapped file that is gone is SIGBUS
    path = tmp_path / "core"
    path.write_bytes(captured("nccl_wait"))
    script = """if True:
        import os, sys
        from pathlib import Path
        from diag.sources.gpu import cuda_core, cuda_coredump

        sections = cuda_core._sections

        def cut_off(*args):
            os.truncate(sys.argv[1], 0)
            yield from sections(*args)

        cuda_core._BLOCK, cuda_core._sections = 512, cut_off
        print(cuda_coredump.load_file(Path(sys.argv[1]))["failed"])
    """
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout.startswith("it is cut off")) == (0, True), done


@pytest.mark.parametrize("size", [64, 100, 4096])
def test_what_lies_across_blocks_is_read_whole(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "core"
    path.write_bytes(captured("nccl_wait"))
    at_once = cuda_core.kernels(path)

    monkeypatch.setattr(cuda_core, "_BLOCK", size)

    assert at_once and cuda_core.kernels(path) == at_once
