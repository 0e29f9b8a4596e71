"""CMD gets the signals it gets alone, each once."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import COUNTER, ROOT, Driven, driver_argv, state_of, until

ALL = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")
Start = Callable[..., Driven]


def test_a_signal_to_diag_alone_reaches_cmd_once(drive_counter: Start) -> None:
    # given CMD under diag
    driven = drive_counter(*ALL)
    # when each signal is sent to diag's pid
    for n, name in enumerate(ALL, 1):
        os.kill(driven.process.pid, getattr(signal, name))
        driven.until_event(" forwarded", times=n)
        driven.until_got(n)
    # then CMD got each once, and diag ends with CMD's code
    assert driven.end_counter() == 5
    assert driven.got == list(ALL)


def test_a_signal_to_the_group_is_not_sent_again(drive_counter: Start) -> None:
    driven = drive_counter(*ALL)
    for n, name in enumerate(ALL, 1):
        os.killpg(driven.process.pid, getattr(signal, name))
        driven.until_event("not forwarded", times=n)
        driven.until_got(n)
    assert driven.end_counter() == 5
    assert driven.got == list(ALL)


def test_group_and_single_kills_are_told_apart_without_any_grace(drive_counter: Start) -> None:
    # given a forwarder that decides at once, so that only the kernel's lock orders the two processes
    driven = drive_counter("SIGUSR1", "SIGUSR2", options=["--grace", "0"])
    # when 200 kills come, by turns to the group and to diag, while the machine is busy
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for n in range(1, 101):
            os.killpg(driven.process.pid, signal.SIGUSR1)
            driven.until_event("signal 10", times=n)
            driven.until_got(2 * n - 1)  # or the kernel may make one of two
            os.kill(driven.process.pid, signal.SIGUSR2)
            driven.until_event("signal 12", times=n)
            driven.until_got(2 * n)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    # then each was decided rightly
    assert sum("signal 10 not forwarded" in e for e in driven.events) == 100
    assert sum("signal 12 forwarded" in e for e in driven.events) == 100
    assert driven.end_counter() == 5
    assert (driven.got.count("SIGUSR1"), driven.got.count("SIGUSR2")) == (100, 100)


def test_a_sender_that_goes_from_pid_to_pid_is_like_a_group_kill(drive_counter: Start) -> None:
    # given something like scancel or systemd, which signals all processes of a cgroup one after the other
    driven = drive_counter("SIGTERM")
    pids = (driven.process.pid, driven.cmd_pid, driven.witness_pid)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    driven.until_event("signal 15 not forwarded")
    driven.until_got(1)
    assert driven.end_counter() == 5
    assert driven.got == ["SIGTERM"]


def test_timeout_ends_cmd_and_keeps_its_code(tmp_path: Path, drive: Start) -> None:
    # given timeout(1), which kills its child and then its group
    driven = drive(
        [sys.executable, "-c", COUNTER + "\n", str(tmp_path / "got"), "SIGTERM"],
        "--read",
        wrap=["timeout", "1"],
    )
    # when the time is up
    driven.until_event("signal 15")
    # then CMD got it as often as the kernel hands it over alone: once, or twice when it was quick between the
    # two
    time_up = until(lambda: driven.got, "CMD got SIGTERM")
    assert set(time_up) == {"SIGTERM"} and len(time_up) <= 2
    driven.end_counter()


def test_the_witness_cannot_be_met_by_name(drive_counter: Start) -> None:
    driven = drive_counter()
    for field in ("cmdline", "comm"):
        name = Path(f"/proc/{driven.witness_pid}/{field}").read_bytes().strip(b"\0\n")
        assert name == b"signal-witness"
    assert sorted(os.listdir(f"/proc/{driven.witness_pid}/fd"), key=int)[:3] == ["0", "1", "2"]
    assert len(os.listdir(f"/proc/{driven.witness_pid}/fd")) == 5
    driven.end_counter()


def test_without_a_witness_a_signal_to_diag_is_still_forwarded(drive_counter: Start) -> None:
    driven = drive_counter("SIGTERM", "SIGHUP")
    os.kill(driven.witness_pid, signal.SIGKILL)
    os.kill(driven.process.pid, signal.SIGTERM)
    driven.until_event("signal 15 forwarded")
    driven.until_got(1)
    assert driven.end_counter() == 5
    assert driven.got == ["SIGTERM"]


def test_death_by_a_forwarded_signal_is_diags_end_too(drive: Start) -> None:
    driven = drive(["sh", "-c", "echo up; exec sleep 60"])
    assert driven.process.stdout is not None and driven.process.stdout.readline() == b"up\n"
    driven.process.terminate()
    assert driven.process.wait(20) == -signal.SIGTERM
    until(lambda: state_of(driven.witness_pid) == "", "the witness is gone")


def test_signals_ignored_by_nohup_stay_ignored_in_cmd(tmp_path: Path, drive: Start) -> None:
    # given diag started with SIGINT and SIGHUP ignored
    def ignore() -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    kwargs: dict[str, Any] = {"process_group": None} if sys.version_info >= (3, 11) else {}
    driven = drive(["sh", "-c", f"echo up; read x <{fifo}; exit 4"], preexec_fn=ignore, **kwargs)
    assert driven.process.stdout is not None and driven.process.stdout.readline() == b"up\n"
    # when they come, to diag and to the group
    os.kill(driven.process.pid, signal.SIGHUP)
    driven.until_event("signal 1 ")
    os.killpg(driven.process.pid, signal.SIGINT)
    driven.until_event("signal 2 ")
    # then CMD goes on to its own end
    fifo.write_text("go\n")
    assert driven.process.wait(20) == 4


def test_a_signal_while_diag_loads_ends_it_before_cmd_starts(tmp_path: Path, drive: Start) -> None:
    # given diag stopped before it has started CMD (its signals are blocked from the first moment)
    mark = tmp_path / "mark"
    early = "import os, signal, sys; sys.argv = sys.argv[1:]; from diag.launch import signals; p = signals.prepare(); "
    early += "os.kill(os.getpid(), signal.SIGTERM); p.end_if_signalled(); open(sys.argv[0], 'w')"
    done = subprocess.run(
        [sys.executable, "-c", early, str(mark)], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode == -signal.SIGTERM
    assert not mark.exists()


def test_kill_9_of_diag_leaves_the_job_and_its_whole_output(
    tmp_path: Path, run_dir: Path, drive: Start
) -> None:
    # given a job in the middle of its output
    fifo, done = tmp_path / "fifo", tmp_path / "done"
    os.mkfifo(fifo)
    driven = drive(
        ["sh", "-c", f"seq 1000; echo half; read x <{fifo}; seq 1000 2000; echo end >&2; touch {done}"]
    )
    assert driven.process.stdout is not None
    while driven.process.stdout.readline() != b"half\n":
        pass
    witness = driven.witness_pid
    # when diag is killed
    driven.process.kill()
    driven.process.wait()
    fifo.write_text("go\n")
    # then the job runs to its end, everything is in its file, and nothing of diag's is left
    until(done.exists, "the job ended by itself")
    numbers = [*range(1, 1001), "half", *range(1000, 2001)]
    assert (run_dir / "stdout.log").read_text().split() == [str(n) for n in numbers]
    assert (run_dir / "stderr.log").read_text() == "end\n"
    until(lambda: state_of(witness) == "", "the witness is gone")


class Terminal:
    """A real terminal with a program in it, and what it has shown."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, env)
        self.shown = b""

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def until_shown(self, text: bytes) -> None:
        """Wait for the text behind all that was waited for before."""

        def found() -> bool:
            if select.select([self.fd], [], [], 0)[0]:
                try:
                    self.shown += os.read(self.fd, 65536)
                except OSError:
                    pass
            return text in self.shown

        until(found, f"{text!r} in {self.shown!r}")
        self.shown = self.shown[self.shown.index(text) + len(text) :]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[[list[str]], Terminal]]:
    opened: list[Terminal] = []

    def start(argv: list[str]) -> Terminal:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PS1": "PROMPT> ", "TERM": "xterm"}
        opened.append(Terminal(argv, env))
        return opened[-1]

    yield start
    for term in opened:
        term.close()
        try:
            os.kill(term.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(term.pid, 0)


def counter_argv(tmp_path: Path, run_dir: Path, *names: str) -> list[str]:
    cmd = [sys.executable, "-c", COUNTER, str(tmp_path / "got"), *names]
    return driver_argv(cmd, "--dir", str(run_dir), "--events", str(tmp_path / "events"))


class Seen(Driven):
    """The driver's notes, where a terminal started it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def test_ctrl_c_reaches_cmd_once(
    terminal: Callable[[list[str]], Terminal], tmp_path: Path, run_dir: Path
) -> None:
    term = terminal(counter_argv(tmp_path, run_dir, "SIGINT", "SIGQUIT"))
    seen = Seen(tmp_path)
    term.until_shown(b"ready")
    for n in range(1, 6):
        term.type(b"\x03")
        seen.until_event("signal 2 not forwarded", times=n)
        seen.until_got(n)
    term.type(b"\x1c")
    seen.until_event("signal 3 not forwarded")
    seen.until_got(6)
    os.kill(seen.cmd_pid, signal.SIGALRM)
    until(lambda: state_of(term.pid) == "Z", "diag has ended")
    assert seen.got == ["SIGINT"] * 5 + ["SIGQUIT"]


def test_hangup_of_the_terminal_reaches_cmd(
    terminal: Callable[[list[str]], Terminal], tmp_path: Path, run_dir: Path
) -> None:
    # given diag as the session's leader (ssh -t host diag run ...), the only one the kernel tells of a hangup
    term = terminal(counter_argv(tmp_path, run_dir, "SIGHUP"))
    seen = Seen(tmp_path)
    term.until_shown(b"ready")
    term.close()
    # then CMD is told
    seen.until_event("signal 1 forwarded")
    seen.until_got(1)
    os.kill(seen.cmd_pid, signal.SIGALRM)
    until(lambda: state_of(term.pid) == "Z", "diag has ended, though its terminal is gone")
    assert seen.got == ["SIGHUP"]


@pytest.mark.parametrize("how", ["ctrl-z", "kill diag"])
def test_stop_and_fg_work_as_without_diag(
    terminal: Callable[[list[str]], Terminal], tmp_path: Path, run_dir: Path, how: str
) -> None:
    # given diag in an interactive bash
    argv = counter_argv(tmp_path, run_dir, "SIGINT", "SIGCONT", "SIGUSR1")
    script = tmp_path / "cmd.sh"
    script.write_text("exec " + " ".join(f"'{word}'" for word in argv) + "\n")
    term = terminal(["bash", "--norc", "--noprofile", "-i"])
    term.until_shown(b"PROMPT> ")
    term.type(f"bash {script}\n".encode())
    term.until_shown(b"ready")
    seen = Seen(tmp_path)
    diag_pid = int(Path(f"/proc/{seen.cmd_pid}/stat").read_text().rpartition(")")[2].split()[1])
    for n in (1, 2):  # twice: the first must leave nothing behind
        # when it is stopped
        if how == "ctrl-z":
            term.type(b"\x1a")
        else:
            os.kill(diag_pid, signal.SIGTSTP)
        # then the shell has its prompt, and diag and CMD are stopped
        term.until_shown(b"Stopped")
        term.until_shown(b"PROMPT> ")
        assert (state_of(diag_pid), state_of(seen.cmd_pid)) == ("T", "T")
        # and when the shell continues the job, both run, and CMD got one SIGCONT
        term.type(b"fg\n")
        seen.until_event("signal 18 not forwarded", times=n)
        seen.until_got(n)
        assert (state_of(diag_pid), seen.got) == ("S", ["SIGCONT"] * n)
    # and Ctrl-C still counts once
    term.type(b"\x03")
    seen.until_event("signal 2 not forwarded")
    seen.until_got(3)
    os.kill(seen.cmd_pid, signal.SIGALRM)
    term.until_shown(b"PROMPT> ")
    term.type(b"echo code=$?\n")
    term.until_shown(b"code=5\r\n")
    assert [name for name in seen.got if name != "SIGCONT"] == ["SIGINT"]


def test_diag_stays_awake_when_someone_stops_cmd(drive_counter: Start) -> None:
    # given CMD stopped by SIGSTOP: a hang to report, not a Ctrl-Z
    driven = drive_counter("SIGUSR1")
    os.kill(driven.cmd_pid, signal.SIGSTOP)
    until(lambda: state_of(driven.cmd_pid) == "T", "CMD is stopped")
    # when diag is looked at after it has dealt with a later signal
    os.kill(driven.process.pid, signal.SIGUSR1)
    driven.until_event("signal 10 forwarded")
    # then it runs
    assert state_of(driven.process.pid) == "S"
    os.kill(driven.cmd_pid, signal.SIGCONT)
    until(lambda: driven.got == ["SIGUSR1"], "CMD goes on")
    assert driven.end_counter() == 5


def test_cont_to_diag_alone_continues_cmd(drive_counter: Start) -> None:
    driven = drive_counter("SIGUSR1")
    os.kill(driven.process.pid, signal.SIGTSTP)
    until(lambda: (state_of(driven.process.pid), state_of(driven.cmd_pid)) == ("T", "T"), "both are stopped")
    os.kill(driven.process.pid, signal.SIGCONT)
    until(lambda: (state_of(driven.process.pid), state_of(driven.cmd_pid)) == ("S", "S"), "both run")
    assert driven.end_counter() == 5
