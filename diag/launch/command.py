"""Starts CMD as the shell would have started it, and keeps how it ended.

Where its output goes is decided in `output_file`, which signals it is sent in `signals`.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from diag.launch.isolated import given_environment

_NO_TERMINAL, _NARROWEST, _WIDEST = 80, 40, 160  # columns


class CommandError(Exception):
    """CMD could not be started; the text is the line to print, `exit_code` the shell's code for it."""

    exit_code = 126


class CommandNotFound(CommandError):
    exit_code = 127


class CommandNotExecutable(CommandError):
    pass


class Command:
    """A running CMD.

    >>> done = start(["/bin/sh", "-c", "exit 3"])
    >>> done.wait()
    3
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None  # as the shell's $?: the exit code, or 128 + the signal
        self.term_signal: int | None = None  # the signal that ended it, if one did
        self._lock = threading.Lock()  # a pid may be given to another process once it is reaped
        try:
            self.pidfd = os.pidfd_open(pid)  # readable once it has ended
        except (OSError, AttributeError):  # before Linux 5.3, or refused by a seccomp profile
            self.pidfd = -1

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until CMD has ended; None when it had not after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.001
        while self._reap() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            if self.pidfd >= 0:
                poll = select.poll()
                poll.register(self.pidfd, select.POLLIN)
                poll.poll(None if left is None else left * 1000 + 1)
            else:
                time.sleep(pause if left is None else min(pause, left))
                pause = min(pause * 2, 0.05)
        return self.returncode

    def send_signal(self, signo: int) -> bool:
        """Send a signal to CMD; False when it has ended."""
        with self._lock:
            if self.returncode is not None:
                return False
            try:
                os.kill(self.pid, signo)
            except (ProcessLookupError, PermissionError):  # CMD may have become another user (sudo)
                return False
            return True

    def is_stopped(self) -> bool:
        """Whether a stop signal holds CMD at this moment."""
        with self._lock:
            if self.returncode is not None:
                return False
            try:  # WNOWAIT: this must not use up the status that another wait may want
                found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            return found is not None

    def _reap(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # reaped by someone else: how it ended is lost
                    pid, status = self.pid, 255 << 8
                if pid == self.pid:
                    self._keep(os.waitstatus_to_exitcode(status))
            return self.returncode

    def _keep(self, code: int) -> None:
        if code < 0:
            self.term_signal = -code
            code = 128 - code
        self.returncode = code
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def start(
    argv: Sequence[str],
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    env: Mapping[str, str] | None = None,
    sigmask: Iterable[int] = (),
) -> Command:
    """Start CMD with the given descriptors (None: diag's own) and the signal mask that diag was started with.

    posix_spawn and not Popen: it is the one call that sets the child's mask without a moment in which diag's
    own mask is open, runs no Python between fork and exec, and keeps the descriptors that diag itself
    inherited (a make job server's, say), which CMD would have alone. Those that diag opened are close-on-exec
    (PEP 446). CMD stays in diag's process group and session, and nothing ties its life to diag's. Call it
    from the main thread.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        # With it ignored the kernel throws exit codes away. CMD inherits the default, too: the one thing it
        # has differently.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    environment = dict(os.environ if env is None else env)
    ends = ((stdout, 1), (stderr, 2))
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in ends if source is not None]
    return Command(_spawn(argv, environment, actions, tuple(sigmask)))


def run_alone(argv: Sequence[str], sigmask: Iterable[int] | None) -> NoReturn:
    """Become CMD, as if diag had not been asked: where there is no thread or process left to watch it with.
    `sigmask`: see `start`; None where it was not changed.

    Raises CommandError where CMD cannot be run.
    """
    environment = given_environment()
    path = _find(argv[0], environment)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # see _spawn
        signal.signal(number, signal.SIG_DFL)
    if sigmask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, sigmask)
    try:
        try:
            os.execve(path, list(argv), environment)
        except OSError as error:
            if error.errno == errno.ENOEXEC and _is_text(path):
                os.execve("/bin/sh", ["sh", path, *argv[1:]], environment)
            raise
    except OSError as error:
        raise CommandNotExecutable(_not_executable(path, (error.strerror or str(error)).lower())) from error


def can_start_threads(count: int) -> bool:
    """Whether so many more threads (or processes: one limit counts both) can live at once, now."""
    over, threads = threading.Event(), []
    try:
        for _ in range(count):
            thread = threading.Thread(target=over.wait, name="probe", daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        return False
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return True


def _spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    actions: Sequence[tuple[int, int, int]],
    sigmask: Sequence[int],
) -> int:
    path = _find(argv[0], env)

    def spawn(program: str, words: Sequence[str]) -> int:
        return os.posix_spawn(
            program,
            list(words),
            env,
            file_actions=actions,
            setsigmask=sigmask,
            # Python ignores these two from its start, so what they were before cannot be known; the default
            # is what a shell hands on. All others are as diag found them: exec drops handlers and keeps
            # SIG_IGN (nohup).
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )

    try:
        try:
            return spawn(path, argv)
        except OSError as error:
            # a script without "#!": sh runs it, as execvp does
            if error.errno == errno.ENOEXEC and _is_text(path):
                return spawn("/bin/sh", ["sh", path, *argv[1:]])
            raise
    except FileNotFoundError as error:
        if Path(path).exists():
            raise CommandNotFound(
                f"error: cannot run {path}: the interpreter in its first line does not exist; hint: correct its #! line"
            ) from error
        raise CommandNotFound(_not_found(argv[0], env)) from error
    except OSError as error:
        reason = "it is a directory" if Path(path).is_dir() else (error.strerror or str(error)).lower()
        raise CommandNotExecutable(_not_executable(path, reason)) from error


def _find(name: str, env: Mapping[str, str]) -> str:
    """The file that a shell would run for this name."""
    if "/" in name:
        return name
    refused = None
    for folder in env.get("PATH", os.defpath).split(os.pathsep) if name else ():
        candidate = os.path.join(folder or ".", name)
        if Path(candidate).is_file():
            if os.access(candidate, os.X_OK):
                return candidate
            refused = refused or candidate
    if refused is not None:
        raise CommandNotExecutable(_not_executable(refused, "permission denied"))
    raise CommandNotFound(_not_found(name, env))


def _not_found(name: str, env: Mapping[str, str]) -> str:
    from diag.text.suggest import command_in_path, file_beside

    if "/" in name:
        hint = file_beside(Path(name))
        return f"error: cannot run {name!r}: no such file; hint: {hint or 'check the command after `--`'}"
    hint = "check the command after `--` and that its environment is active"
    if name.endswith(".py") and Path(name).is_file():
        hint = f"name its interpreter (python {name})"
    elif near := command_in_path(name, env.get("PATH", os.defpath)):
        hint = f"did you mean {near}? Else {hint}"
    return f"error: cannot run {name!r}: command not found in PATH; hint: {hint}"


def _not_executable(path: str, reason: str) -> str:
    return f"error: cannot run {path}: {reason}; hint: chmod +x it, or name its interpreter (python {path})"


def _is_text(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b"\0" not in file.read(256)
    except OSError:
        return False


def hold_closed_stdio() -> tuple[int, ...]:
    """Put /dev/null on those of 0, 1, 2 that are closed, so that no file of diag's lands there; returns
    which.

    Close-on-exec, so CMD finds them closed, as alone.
    """
    held = []
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        held.append(fd)
    os.close(fd)
    return tuple(held)


def exit_as(command: Command) -> NoReturn:
    """End diag as CMD ended.

    A CMD that died of a signal makes diag die of it too: `$?` is 128+n either way, but bash leaves a loop on
    Ctrl-C, and make prints "Terminated", only when the child really died of the signal. (PID 1 cannot, and
    exits with 128+n.)
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                pass
    if command.term_signal is not None:
        # one core: CMD's
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if command.term_signal not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(command.term_signal, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {command.term_signal})
        os.kill(os.getpid(), command.term_signal)
    # no flush of what could not be written: its failure would be the exit code
    os._exit(command.returncode or 0)


def terminal_env(
    stdout_is_tty: bool,
    environ: Mapping[str, str] = os.environ,
    size: os.terminal_size | None = None,
    *,
    unbuffered: bool = True,
) -> dict[str, str]:
    """Variables to add for CMD so that colours, widths and prompt lines survive that its output goes to a
    file.

    PYTHONUNBUFFERED shows each line of a plain `python train.py` at once, but makes one write of each
    argument of print() (measured: print("step", 0) is four), so lines of several ranks can mix. Pass
    `unbuffered=False` where a hook inside the ranks sets `sys.stdout.reconfigure(line_buffering=True)`, which
    is what a terminal alone gives.

    >>> terminal_env(False)
    {}
    >>> sorted(terminal_env(True, {"NO_COLOR": "1", "LINES": "24"}, os.terminal_size((100, 30))))
    ['COLUMNS', 'PYTHONUNBUFFERED', 'TQDM_NCOLS']
    """
    if not stdout_is_tty:
        return {}
    columns, lines = size if size is not None else shutil.get_terminal_size()
    # tqdm 4.66 and later; since 4.70 it asks the file it writes to, and COLUMNS no more, and alone leaves the
    # last column free.
    wanted = {"COLUMNS": str(columns), "LINES": str(lines), "TQDM_NCOLS": str(max(1, columns - 1))}
    if unbuffered:
        wanted["PYTHONUNBUFFERED"] = "1"
    if not environ.get("NO_COLOR") and environ.get("TERM") != "dumb":
        wanted.update(FORCE_COLOR="1", CLICOLOR_FORCE="1", PY_COLORS="1")
    return {name: value for name, value in wanted.items() if name not in environ}


def columns(fd: int = 2) -> int:
    """Of lines on this descriptor; 80 where it is no terminal."""
    try:
        found = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(fd).columns or _NO_TERMINAL
    except (OSError, ValueError):
        found = _NO_TERMINAL
    return max(_NARROWEST, min(_WIDEST, found))
