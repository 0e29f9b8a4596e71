"""CMD starts and ends as it does alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import ROOT

from diag.launch import command

# What a process inherits and can see of it.
SELF = (
    "grep -E '^Sig(Blk|Ign)|^Seccomp:' /proc/self/status; ls /proc/$$/fd; ulimit -a; umask; "
    "ps -o pgid=,sess= -p $$ | awk '{print ($1 == ENVIRON[\"WANT_PGID\"]), $2}'; pwd; env | grep -v -e ^WANT -e ^_= | sort"
)


def test_every_exit_code_is_kept() -> None:
    # given a CMD for each code there is
    running = [command.start(["/bin/sh", "-c", f"exit {code}"]) for code in range(256)]
    # when it has ended
    codes = [cmd.wait(20) for cmd in running]
    # then it is the code
    assert codes == list(range(256))


@pytest.mark.parametrize(
    "signo", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT, signal.SIGPIPE]
)
def test_death_by_a_signal_is_128_plus_the_signal(signo: signal.Signals) -> None:
    cmd = command.start(["/bin/sh", "-c", f"kill -{signo.value} $$"])
    assert cmd.wait(20) == 128 + signo
    assert cmd.term_signal == signo


@pytest.mark.parametrize("script", ["exit 0", "exit 77", "kill -TERM $$", "kill -9 $$", "kill -INT $$"])
def test_the_parent_sees_the_end_that_it_sees_without_diag(both: Callable[..., Any], script: str) -> None:
    alone, driven = both(["sh", "-c", script])
    assert driven.returncode == alone.returncode  # negative for a real death by signal


def test_wait_gives_none_while_cmd_runs() -> None:
    cmd = command.start(["sleep", "60"])
    assert cmd.wait(0.01) is None
    assert cmd.send_signal(signal.SIGKILL)
    assert cmd.wait(20) == 137
    assert not cmd.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("name", ["no-such-command", "/no/such/file", ""])
def test_missing_command_is_127_in_one_line(name: str) -> None:
    with pytest.raises(command.CommandNotFound) as caught:
        command.start([name])
    assert caught.value.exit_code == 127
    assert str(caught.value).startswith("error: cannot run") and "\n" not in str(caught.value)


def test_command_that_is_no_program_is_126_as_in_a_shell(tmp_path: Path) -> None:
    # given a file without x, a folder, a binary for no machine, and a script whose interpreter is gone
    plain, binary, orphan = tmp_path / "plain", tmp_path / "binary", tmp_path / "orphan"
    plain.write_text("echo hi")
    binary.write_bytes(b"\x7fELF\0\0\0")
    orphan.write_text("#!/no/such/python\n")
    binary.chmod(0o755)
    orphan.chmod(0o755)
    # when they are started, by path or through PATH
    cases: list[tuple[str, type[command.CommandError]]] = [
        (str(plain), command.CommandNotExecutable),
        ("plain", command.CommandNotExecutable),
        (str(tmp_path), command.CommandNotExecutable),
        (str(binary), command.CommandNotExecutable),
        (str(orphan), command.CommandNotFound),
    ]
    # then each has its error
    for name, error in cases:
        with pytest.raises(error, match="cannot run"):
            command.start([name], env={"PATH": str(tmp_path)})


def test_driver_exits_127_and_126(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = [sys.executable, str(Path(__file__).with_name("driver.py"))]
    for name, code in (("no-such-command", 127), ("/etc/passwd", 126)):
        folder = tmp_path / str(code)
        folder.mkdir()
        done = subprocess.run(
            [*driver, "--dir", str(folder), "--", name],
            env=environment,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert (done.returncode, done.stderr.count("\n")) == (code, 1)


def test_script_without_shebang_runs_in_sh(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("exit $1\n")
    script.chmod(0o755)
    assert command.start(["script", "9"], env={"PATH": str(tmp_path)}).wait(20) == 9


def _without_glibcs_own(told: bytes) -> bytes:
    """SigIgn less signals 32 and 33, which whoever started the tests by posix_spawn may have left ignored as
    well."""
    return re.sub(
        rb"SigIgn:\t(\w+)", lambda found: b"SigIgn:\t%016x" % (int(found[1], 16) & ~(3 << 31)), told
    )


def test_cmd_inherits_what_it_inherits_without_diag(both: Callable[..., Any]) -> None:
    # given a parent that ignores and blocks some signals, and hands down a descriptor (as make's job server
    # does)
    read, write = os.pipe()

    def prepare() -> None:
        os.setpgid(0, 0)
        os.environ["WANT_PGID"] = str(os.getpgrp())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})

    # when CMD tells its masks, descriptors, limits, group, session and environment
    alone, driven = both(["sh", "-c", SELF], preexec_fn=prepare, pass_fds=(write,))
    os.close(read)
    os.close(write)
    # then they are the same (but for 32 and 33, glibc's own: its posix_spawn leaves them ignored)
    ignored = re.search(rb"SigIgn:\t(\w+)", alone.stdout)  # others too, where the tests run in the background
    assert ignored is not None and int(ignored[1], 16) & 0b11 == 0b11
    assert _without_glibcs_own(driven.stdout) == _without_glibcs_own(alone.stdout)
    assert driven.stderr == alone.stderr


def test_closed_stdout_and_stderr_stay_closed_for_cmd(both: Callable[..., Any], tmp_path: Path) -> None:
    # given diag started with 1 and 2 closed
    def close() -> None:
        os.close(1)
        os.close(2)

    seen = tmp_path / "seen"
    alone, driven = both(
        [
            "/usr/bin/env",
            "python3",
            "-c",
            f"import os; open({str(seen)!r}, 'a').write(str(os.path.exists('/proc/self/fd/1')))",
        ],
        preexec_fn=close,
        stdout=None,
        stderr=None,
    )
    assert (alone.returncode, driven.returncode) == (0, 0)
    assert len(set(seen.read_text().replace("e", "e ").split())) == 1


def test_exit_code_is_kept_where_the_parent_ignored_sigchld(both: Callable[..., Any]) -> None:
    _, driven = both(["sh", "-c", "exit 6"], preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert driven.returncode == 6


def test_terminal_env_leaves_what_the_user_set() -> None:
    size = os.terminal_size((120, 40))
    given = {"FORCE_COLOR": "0", "COLUMNS": "7"}
    added = command.terminal_env(True, given, size)
    assert added == {
        "LINES": "40",
        "TQDM_NCOLS": "119",
        "PYTHONUNBUFFERED": "1",
        "CLICOLOR_FORCE": "1",
        "PY_COLORS": "1",
    }
    assert "PY_COLORS" not in command.terminal_env(True, {"NO_COLOR": "1"}, size)
    assert "PY_COLORS" not in command.terminal_env(True, {"TERM": "dumb"}, size)
    assert command.terminal_env(False, {}, size) == {}
