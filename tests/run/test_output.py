"""The job's output arrives byte for byte, and nothing that happens to it harms the job."""

from __future__ import annotations

import fcntl
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, Driven, state_of, until

from diag.launch import output_file, relay

Start = Callable[..., Driven]

GARBAGE = "import os, random; os.write({fd}, random.Random(7).randbytes(300_000))"
BARS = r"""
import os, sys
for i in range(2000):
    os.write(2, f"\r\x1b[32mTrain: {i/20:5.1f}%|{'█' * (i // 100):20}|\x1b[0m".encode())
    if i % 100 == 0:
        os.write(1, b"{'loss': 0.69, 'global_step/max_steps': '%d/20'}\n" % i)
os.write(2, b"\r\n")
"""
BURST = "import os; line = b'x' * 99 + b'\\n'\nfor i in range(500): os.write(1, line * 1000)"
LONG_LINE = "import os\nfor i in range(100): os.write(1, bytes([65 + i % 26]) * 100_000)\nos.write(1, b'end')"
TURNS = "import os\nfor i in range(3000): os.write(1 + i % 2, b'%d\\n' % i)"
PARTIAL = "import os; os.write(1, b'no newline'); os.write(2, b'nor here\\r')"


@pytest.mark.parametrize(
    "script",
    [GARBAGE.format(fd=1), GARBAGE.format(fd=2), BARS, BURST, LONG_LINE, TURNS, PARTIAL, "pass"],
    ids=[
        "binary",
        "binary on stderr",
        "bars",
        "50 MB burst",
        "10 MB line",
        "turns",
        "partial line",
        "nothing",
    ],
)
def test_output_is_the_same_byte_for_byte(both: Callable[..., Any], script: str) -> None:
    alone, driven = both([sys.executable, "-c", script], "--read")
    assert len(driven.stdout) == len(alone.stdout)
    assert driven.stdout == alone.stdout
    assert driven.stderr == alone.stderr


def test_order_of_stdout_and_stderr_is_kept_where_they_are_one(both: Callable[..., Any]) -> None:
    alone, driven = both([sys.executable, "-c", TURNS], stderr=subprocess.STDOUT)
    assert driven.stdout == alone.stdout == b"".join(b"%d\n" % i for i in range(3000))


def test_stdin_is_cmds(both: Callable[..., Any]) -> None:
    alone, driven = both(["tr", "a-z", "A-Z"], input=b"question\n" * 1000)
    assert driven.stdout == alone.stdout == b"QUESTION\n" * 1000


def test_a_partial_line_is_shown_at_once(tmp_path: Path, drive: Start) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    driven = drive(["sh", "-c", f"printf 'name? '; read x <{fifo}; echo $x"])
    assert driven.process.stdout is not None
    assert os.read(driven.process.stdout.fileno(), 100) == b"name? "
    fifo.write_text("Ada\n")
    assert driven.process.stdout.read() == b"Ada\n"


def test_a_blocked_reader_blocks_neither_the_job_nor_its_observer(tmp_path: Path, drive: Start) -> None:
    # given a reader that does not read, and more output than a pipe holds
    done = tmp_path / "done"
    script = f"import os\nfor i in range(50): os.write(1, b'%05d' % i * 20_000)\nopen({str(done)!r}, 'w')"
    driven = drive(
        [sys.executable, "-c", script + "\nos.write(1, b'LAST')\nimport time; time.sleep(600)"],
        "--say-on",
        "LAST",
        stderr=subprocess.PIPE,
    )
    # then the job gets on
    until(done.exists, "the job went on")
    # and diag, which has seen the end of it, speaks
    assert driven.process.stderr is not None and driven.process.stderr.readline() == b"[diag] message\n"
    # and when the reader reads, it gets everything
    assert driven.process.stdout is not None
    data = driven.process.stdout.read(50 * 100_000 + 4)
    assert data == b"".join(b"%05d" % i * 20_000 for i in range(50)) + b"LAST"


def test_diag_does_not_end_before_a_slow_reader_has_everything(drive: Start) -> None:
    driven = drive([sys.executable, "-c", "import os; os.write(1, b'y' * 1_000_000)"])
    until(lambda: state_of(driven.cmd_pid) == "" and state_of(driven.witness_pid) == "", "the job has ended")
    assert driven.process.poll() is None
    assert driven.process.stdout is not None and len(driven.process.stdout.read()) == 1_000_000
    assert driven.process.wait(20) == 0


def test_sigterm_ends_a_diag_whose_job_has_ended_and_whose_reader_hangs(drive: Start) -> None:
    driven = drive([sys.executable, "-c", "import os; os.write(1, b'y' * 1_000_000)"])
    until(lambda: state_of(driven.cmd_pid) == "" and state_of(driven.witness_pid) == "", "the job has ended")
    driven.process.terminate()
    assert driven.process.wait(20) == -signal.SIGTERM


def test_a_closed_stdout_does_not_end_the_job(tmp_path: Path, run_dir: Path, drive: Start) -> None:
    # given a reader that goes (| head -1)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    driven = drive(["sh", "-c", f"echo one; read x <{fifo}; seq 100000; exit 3"])
    assert driven.process.stdout is not None and driven.process.stdout.readline() == b"one\n"
    driven.process.stdout.close()
    driven.process.stdout = None
    # when the job writes on
    fifo.write_text("go\n")
    # then it ends by itself, it is said where the output is, and it is all there
    assert driven.process.wait(20) == 3
    assert sum("cannot write the job's stdout: Broken pipe" in e for e in driven.events) == 1
    assert (run_dir / "stdout.log").read_text().split() == ["one", *map(str, range(1, 100001))]


def test_diag_ends_with_cmd_though_a_grandchild_holds_the_file(
    tmp_path: Path, run_dir: Path, drive: Start
) -> None:
    # given a CMD that leaves a process behind with its stdout
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    driven = drive(["sh", "-c", f"(read x <{fifo}; echo late) & echo early; exit 8"])
    # then diag ends
    assert driven.process.wait(20) == 8
    assert driven.process.stdout is not None and driven.process.stdout.read() == b"early\n"
    # and the process can still write
    fifo.write_text("go\n")
    until(lambda: (run_dir / "stdout.log").read_bytes() == b"early\nlate\n", "the late line is in the file")


def test_reserved_space_is_given_back_at_the_end(run_dir: Path, drive: Start) -> None:
    driven = drive(["echo", "hi"], "--reserve", str(8 << 20))
    assert driven.process.wait(20) == 0
    assert (run_dir / "stdout.log").stat().st_blocks * 512 <= 4096


def test_file_stays_bounded_and_offsets_stay_true(tmp_path: Path, run_dir: Path, drive: Start) -> None:
    # given a bound of 2 MiB, and a job that writes 60
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"import os\nfor i in range(60): os.write(1, b'%03d' % i + bytes(1 << 20))\nopen({str(fifo)!r}).read()"
    driven = drive([sys.executable, "-c", script], "--keep", str(2 << 20), "--reserve", str(1 << 20))
    # when it is read
    assert driven.process.stdout is not None
    digest = hashlib.sha256(driven.process.stdout.read(60 * ((1 << 20) + 3)))
    # then every byte came out
    assert (
        digest.digest() == hashlib.sha256(b"".join(b"%03d" % i + bytes(1 << 20) for i in range(60))).digest()
    )
    # and the file holds the bound, one step, and the reserve
    log = run_dir / "stdout.log"
    until(
        lambda: log.stat().st_blocks * 512 <= (2 << 20) + (256 << 10) + (1 << 20) + 8192,
        f"{log.stat()} within the bound",
    )
    # and its end is there, at its true place
    with log.open("rb") as file:
        file.seek(59 * ((1 << 20) + 3))
        assert file.read(3) == b"059"
    fifo.write_text("")
    assert driven.process.wait(20) == 0


def test_a_cut_file_is_reported_and_the_output_goes_on(tmp_path: Path, run_dir: Path, drive: Start) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    driven = drive(["sh", "-c", f"echo before; read x <{fifo}; echo after"], "--read")
    assert driven.process.stdout is not None and driven.process.stdout.readline() == b"before\n"
    # when a log rotation cuts the file
    os.truncate(run_dir / "stdout.log", 0)
    driven.until_event("was cut from 7 to 0 bytes")
    fifo.write_text("go\n")
    # then what comes after is shown
    assert driven.process.stdout.read() == b"after\n"
    assert driven.process.wait(20) == 0


def test_a_deleted_file_is_reported_and_the_output_goes_on(
    tmp_path: Path, run_dir: Path, drive: Start
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    driven = drive(["sh", "-c", f"echo before; read x <{fifo}; echo after"])
    assert driven.process.stdout is not None and driven.process.stdout.readline() == b"before\n"
    shutil.rmtree(run_dir)
    driven.until_event("was deleted")
    fifo.write_text("go\n")
    assert driven.process.stdout.read() == b"after\n"
    assert driven.process.wait(20) == 0


def test_without_a_place_for_the_file_cmd_has_diags_stdout(tmp_path: Path, drive: Start) -> None:
    for options, reason in (
        (("--dir", str(tmp_path / "missing")), "No such file or directory"),
        (("--dir", "/proc"), "No such file or directory"),
    ):
        driven = drive(["echo", "direct"], *options)
        assert driven.process.stdout is not None and driven.process.stdout.read() == b"direct\n"
        assert any("cannot keep CMD's output" in e and reason in e for e in driven.events)


def test_a_file_size_limit_is_no_trap_for_the_job(tmp_path: Path, drive: Start) -> None:
    # given ulimit -f, which alone says nothing about a terminal or a pipe
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    driven = drive(["head", "-c", "1000000", "/dev/zero"], preexec_fn=limit)
    assert driven.process.stdout is not None and len(driven.process.stdout.read()) == 1_000_000
    assert driven.process.wait(20) == 0


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("of another run")
    with pytest.raises(output_file.OutputFileError, match="File exists"):
        output_file.open_output_file(tmp_path / "output.log")
    assert (tmp_path / "output.log").read_text() == "of another run"


@pytest.mark.parametrize("options", [(), ("--read",)], ids=["unread", "read"])
def test_a_job_writes_on_when_others_fill_the_disk(
    tmp_path: Path, drive: Start, options: tuple[str, ...]
) -> None:
    # given a run directory on a disk of 24 MiB of its own
    disk, fifo = tmp_path / "disk", tmp_path / "fifo"
    disk.mkdir()
    os.mkfifo(fifo)
    probe = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk],
        capture_output=True,
        check=False,
    )
    if probe.returncode != 0:
        pytest.skip(f"no private tmpfs can be mounted here: {probe.stderr.decode().strip()}")
    # and a job that writes 20 MiB a second, each only when the one before was shown, and after the second
    # fills the disk
    script = f"""
import os, time
acks = open({str(fifo)!r}, "rb", buffering=0)
for i in range(36):
    time.sleep(0.05)
    os.write(1, b"%07d\\n" % i * (1 << 17))
    acks.read(1)
    if i == 1:
        filler = open({str(disk / "filler")!r}, "wb", buffering=0)
        try:
            while True: filler.write(bytes(1 << 16))
        except OSError: os.write(2, b"disk is full\\n")
"""
    wrap = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=24m tmpfs {disk} && exec "$@"', "sh"]
    driven = drive(
        [sys.executable, "-c", script],
        "--dir",
        str(disk),
        "--keep",
        str(2 << 20),
        "--reserve",
        str(8 << 20),
        *options,
        wrap=wrap,
        stderr=subprocess.PIPE,
    )
    # when it writes more than the disk has
    assert driven.process.stdout is not None and driven.process.stderr is not None
    acks = os.open(fifo, os.O_RDWR)
    for i in range(36):
        assert driven.process.stdout.read(1 << 20) == b"%07d\n" % i * (1 << 17), driven.process.stderr.read()
        os.write(acks, b"!")
    # then none of its writes failed
    assert driven.process.wait(20) == 0
    assert driven.process.stderr.read() == b"disk is full\n"


def test_a_full_disk_is_said_and_older_output_gives_way(tmp_path: Path) -> None:
    # given a lane on a disk without a free block, all it has written relayed
    disk = tmp_path / "disk"
    disk.mkdir()
    code = f"""
import os, pathlib, sys
from diag.launch import output_file
disk, said = pathlib.Path({str(disk)!r}), []
lane = output_file.open_output_file(disk / "log", keep_bytes=4 << 20, reserve_bytes=1 << 20, report=said.append)
os.write(lane.write_fd, bytes(3 << 20))
lane.relayed = lane.size()
def fill():
    with open(disk / "filler", "ab", buffering=0) as f:
        try:
            while True: f.write(bytes(4096))
        except OSError: pass
fill()
lane.maintain()
assert len(said) == 1 and "is full" in said[0], said
for i in range(16): assert os.write(lane.write_fd, bytes(1 << 16)) == 1 << 16
fill()
try: output_file.open_output_file(disk / "second")
except output_file.OutputFileError as error: assert "No space left" in str(error) and not (disk / "second").exists()
else: raise AssertionError("opened")
"""
    mount = f'mount -t tmpfs -o size=8m tmpfs {disk} || exit 99; exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip(f"no private tmpfs can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_where_fallocate_is_not_supported_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int, mode: int, offset: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(output_file, "fallocate", unsupported)
    said: list[str] = []
    lane = output_file.open_output_file(tmp_path / "log", keep_bytes=1 << 16, report=said.append)
    os.write(lane.write_fd, bytes(1 << 20))
    lane.relayed = lane.size()
    for _ in range(3):
        lane.maintain()
    assert [("reserve" in text, "bounded" in text) for text in said] == [(True, False), (False, True)]
    lane.close()


def test_an_observer_that_fails_does_not_cost_the_output(tmp_path: Path) -> None:
    # given an observer with a fault
    def observe(stream: str, data: bytes, offset: int) -> None:
        raise KeyError("fault")

    said: list[str] = []
    read, write = os.pipe()
    lane = output_file.open_output_file(tmp_path / "log")
    relayed = relay.Relay([relay.Sink("stdout", lane, write)], on_output=observe, report=said.append)
    relayed.start()
    # when the job writes
    os.write(lane.write_fd, b"one\n")
    assert os.read(read, 100) == b"one\n"
    until(lambda: said, "it is said")
    os.write(lane.write_fd, b"two\n")
    # then the output goes on, and the fault is told once
    assert os.read(read, 100) == b"two\n"
    assert relayed.drain(10)
    assert len(said) == 1 and "KeyError: 'fault'" in said[0]


def test_a_non_blocking_stdout_is_waited_for(drive: Start) -> None:
    # given a pipe that someone made non-blocking
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETFL, os.O_NONBLOCK)
    driven = drive([sys.executable, "-c", "import os; os.write(1, b'z' * 3_000_000)"], stdout=write)
    os.close(write)
    with open(read, "rb") as reader:
        assert len(reader.read()) == 3_000_000
    assert driven.process.wait(20) == 0
