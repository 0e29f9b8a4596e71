from pathlib import Path

import pytest

from diag_job import faults
from diag_job.faults import FaultError, in_gpu, parse


def test_a_bare_name_strikes_rank_1_at_the_first_step() -> None:
    fault = parse("data-hang")

    assert (fault.name, fault.rank, fault.step) == ("data-hang", 1, 0)


def test_keys_are_read() -> None:
    fault = parse("slow-rank:rank=3,step=7,factor=2.5")

    assert (fault.rank, fault.step, fault.option("factor")) == (3, 7, 2.5)


@pytest.mark.parametrize("kind", faults.KINDS, ids=lambda kind: kind.name)
def test_every_fault_reads_back_what_it_says_of_itself(kind: faults.Kind) -> None:
    assert parse(str(parse(kind.name))) == parse(kind.name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data-hnag", "there is no fault 'data-hnag'"),
        ("", "there is no fault ''"),
        ("data-hang:node=1", "does not know 'node=1'"),
        ("data-hang:rank", "does not know 'rank'"),
        ("data-hang:rank=one", "rank=one is not a number"),
        ("data-hang:step=1.5", "step=1.5 is not a number"),
        ("data-hang:rank=-1", "rank=-1 is out of range"),
        ("gil-held:seconds=inf", "seconds=inf is out of range"),
        ("rendezvous:step=1", "does not know 'step=1'"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(FaultError) as error:
        parse(text)

    assert said in str(error.value)
    assert "hint: " in str(error.value)


def test_an_unknown_fault_lists_the_names() -> None:
    with pytest.raises(FaultError) as error:
        parse("nonsense")

    assert all(kind.name in str(error.value) for kind in faults.KINDS)


def test_a_rank_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(FaultError, match="there is no rank 2"):
        faults.check(parse("sigstop:rank=2"), ranks=2)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize("name", in_gpu.NAMES)
def test_a_fault_of_the_gpu_says_that_there_is_none(name: str) -> None:
    with pytest.raises(FaultError, match="no NVIDIA GPU"):
        faults.check(parse(name), ranks=2)


def test_long_compile_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(FaultError, match="no C compiler"):
        faults.check(parse("long-compile"))


def test_release_tells_which_fifo_had_a_reader(tmp_path: Path) -> None:
    import os

    for name in ("read.fifo", "unread.fifo"):
        os.mkfifo(tmp_path / name)
    reader = os.open(tmp_path / "read.fifo", os.O_RDONLY | os.O_NONBLOCK)

    released = faults.release(tmp_path)

    assert released == [tmp_path / "read.fifo"]
    assert os.read(reader, 100)
    assert (tmp_path / "release").exists()
    os.close(reader)
