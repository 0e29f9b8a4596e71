"""Gives CMD exactly the signals it would get without diag; diag itself lives on until CMD ends.

CMD is in diag's process group, so a signal to the group (Ctrl-C, `kill -- -PGID`, `timeout`) reaches it by
itself and must not be sent again; one sent to diag's pid alone must be. siginfo shows the difference only for
the terminal, so a *witness* does: a process of ours in the same group, with the same signals blocked, in
which whatever came to the group is pending.

Why the witness's answer can be trusted although signals arrive one process after the other: kill(2) on a
group walks it under the kernel's tasklist_lock, and setpgid(2) takes that lock for writing first of all.
After diag has woken with a signal and made one (failing) setpgid, the walk that woke it is over: what the
witness has not got then, the group has not. A short grace after that is for senders that go from pid to pid:
scancel, `pkill -f`, a systemd or Slurm cgroup, timeout(1).

Thought of and not done: exec CMD in diag's own process, with diag as its child (signals exact by
construction; but the shell goes on, and a container ends, before the last output and findings are out); a
process group of CMD's own (then it is not the terminal's foreground group).
"""

from __future__ import annotations

import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from diag.launch.command import Command

FORWARDED = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)
GRACE_S = 0.03  # ours: a sender that walks over pids needs microseconds each; a person does not feel it
_MARK_S = 1.0  # ours: a mark without its twin in diag is someone's signal to the witness alone
_STOP_S = 10.0  # ours: how long CMD may tidy up after Ctrl-Z before diag no longer stops with it
_SI_KERNEL = 0x80  # asm-generic/siginfo.h: sent by the terminal driver
_MARK = struct.Struct("iiiI")
_NAME = b"signal-witness"


@dataclass(frozen=True, slots=True)
class Mark:
    """A signal as it arrived: the number and who sent it."""

    signo: int
    code: int
    pid: int
    uid: int


@dataclass(eq=False, slots=True)
class SignalProbe:
    """The process in diag's group that shows what came to the whole group."""

    pid: int
    _questions: int  # descriptors
    _answers: int
    alive: bool = True

    def take(self) -> tuple[Mark, ...]:
        """What has come to the witness since the last time. After a failure `alive` is False, and this is
        empty."""
        if not self.alive:
            return ()
        try:
            os.write(self._questions, b"?")
            poll = select.poll()
            poll.register(self._answers, select.POLLIN)
            answer = os.read(self._answers, 4096) if poll.poll(1000) else b""
        except OSError:
            answer = b""
        if not answer:  # killed, or stopped on its own: a late answer would be taken for the next one
            self.close()
            return ()
        return tuple(Mark(*fields) for fields in _MARK.iter_unpack(answer[1:]))

    def close(self) -> None:
        if self.alive:
            self.alive = False
            os.close(self._questions)  # end of file ends it
            os.close(self._answers)
            try:
                os.kill(self.pid, signal.SIGKILL)  # also when something stopped it
                os.waitpid(self.pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `prepare` set up; `mask` is the signal mask that diag was started with and CMD must get."""

    mask: frozenset[int]
    witness: SignalProbe

    def end_if_signalled(self) -> None:
        """Call right before CMD is started: a signal that came while diag was loading ends it, as it would
        have ended CMD."""
        self.witness.take()  # CMD was not in the group yet, so these marks prove nothing
        for signo in signal.sigpending() & FORWARDED - {signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP}:
            if signal.getsignal(signo) != signal.SIG_IGN:
                signal.signal(signo, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signo})
        while signal.sigtimedwait(FORWARDED, 0) is not None:
            pass


def prepare() -> Prepared:
    """Block the signals and fork the witness. Call it first in main, before threads and large imports (it
    stays small so).

    Raises OSError where there is no process or descriptor left; the mask is then as it was. Threads inherit
    the mask. So do child processes: a sidecar must set its own mask when it starts.
    """
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED))
    try:
        ask_r, ask_w = os.pipe()
        answer_r, answer_w = os.pipe()
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    if pid == 0:
        _run_probe(ask_r, answer_w)
    os.close(ask_r)
    os.close(answer_w)
    return Prepared(mask, SignalProbe(pid, ask_w, answer_r))


def _run_probe(questions: int, answers: int) -> NoReturn:
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)  # the reader of diag's pipe must not wait for the witness
        low, high = sorted((questions, answers))
        os.closerange(3, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir("/")
        _rename()
        while os.read(questions, 1):
            marks = b""
            while (info := signal.sigtimedwait(FORWARDED, 0)) is not None:
                marks += _MARK.pack(info.si_signo, info.si_code, info.si_pid, info.si_uid)
            os.write(answers, b"!" + marks)
    finally:
        os._exit(0)


def _rename() -> None:
    """Not to be met by `pkill diag`, which is meant for diag alone and would look like a signal to the group."""
    try:
        with open("/proc/self/comm", "wb") as comm:
            comm.write(_NAME)
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end of proc(5), counted from the state
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(_NAME[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError):  # no /proc, or memory sealed: it only keeps its name
        pass


@dataclass(eq=False)
class Forwarder:
    """The thread that takes diag's signals and hands on those that CMD did not get by itself.

    `before_stop` is called when Ctrl-Z stops diag along with CMD (to show the output so far); `on_signal` gets
    each signal and whether it was forwarded.
    """

    prepared: Prepared
    target: Command
    before_stop: Callable[[], object] = lambda: None
    on_signal: Callable[[int, bool], object] = lambda signo, forwarded: None
    grace_s: float = GRACE_S
    _marks: list[tuple[float, Mark]] = field(default_factory=list)
    _stop_until: float = 0.0
    _closing: bool = False
    _ends: set[int] = field(default_factory=set)  # of the signals by which others end a job, those that came
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """CMD has ended: from now on signals act on diag itself. Call it from the main thread, before the
        output is drained.

        But not the one again by which the job was ended: Slurm's scancel sends SIGTERM twice (its daemon and
        srun), and the second would cut off the last checks and the evidence. Whoever means it sends SIGKILL
        some seconds later, or Ctrl-C.
        """
        self._closing = True
        if self._thread.is_alive():
            signal.pthread_kill(self._thread.ident or 0, signal.SIGWINCH)
            self._thread.join(2)
        self.prepared.witness.close()
        # What is pending now was sent while CMD lived (it cannot have ended before the walk over its group
        # had): dropped.
        while signal.sigtimedwait(FORWARDED, 0) is not None:
            pass
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.prepared.mask | self._ends)

    def _run(self) -> None:
        while True:
            if self._stop_until:
                info = signal.sigtimedwait(FORWARDED, 0.005)
                if info is None:
                    self._stop_with_target()
                    continue
            else:
                info = signal.sigwaitinfo(FORWARDED)
            if self._closing:
                return
            self._take(Mark(info.si_signo, info.si_code, info.si_pid, info.si_uid))

    def _take(self, mark: Mark) -> None:
        if mark.signo in (signal.SIGTERM, signal.SIGHUP):
            self._ends.add(mark.signo)
        to_group = self._came_to_group(mark)
        forwarded = not to_group and self.target.send_signal(mark.signo)
        self.on_signal(mark.signo, forwarded)
        if mark.signo == signal.SIGTSTP:
            self._stop_until = time.monotonic() + _STOP_S
            self._stop_with_target()
        elif mark.signo == signal.SIGCONT:
            self._stop_until = 0.0
        again = signal.sigtimedwait({mark.signo}, 0) if to_group else None
        if again is not None:
            # A second one of the same sender within the same moment (timeout(1) kills the pid, then the
            # group): signals that wait together are one for the kernel too, so are these.
            repeated = Mark(again.si_signo, again.si_code, again.si_pid, again.si_uid)
            if repeated != mark:
                self._take(repeated)
            else:
                self._collect()
                self._marks = [kept for kept in self._marks if kept[1] != mark]

    def _came_to_group(self, mark: Mark) -> bool:
        deadline = time.monotonic() + self.grace_s
        while True:
            self._collect()
            if not self.prepared.witness.alive:
                return mark.code == _SI_KERNEL  # the terminal's; the rest is sent on, twice rather than never
            for kept in self._marks:
                if kept[1] == mark:
                    self._marks.remove(kept)
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.003)

    def _collect(self) -> None:
        _let_group_kill_finish()
        now = time.monotonic()
        self._marks = [kept for kept in self._marks if now - kept[0] < _MARK_S]
        self._marks += [(now, mark) for mark in self.prepared.witness.take()]

    def _stop_with_target(self) -> None:
        """The shell waits for diag, not for CMD: it gives its prompt back when diag stops, too.

        Not before CMD did (it may catch SIGTSTP), and only after a SIGTSTP that diag saw: a CMD that someone
        stopped with SIGSTOP is a finding, and diag must be awake to report it.
        """
        if time.monotonic() > self._stop_until:
            self._stop_until = 0.0
        if not self.target.is_stopped():
            return
        self._stop_until = 0.0
        self.before_stop()
        if signal.SIGCONT in signal.sigpending():  # continued meanwhile; our own SIGTSTP would discard that
            return
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        # the whole process stops here until SIGCONT
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def _let_group_kill_finish() -> None:
    """Return when a kill(2) on a group that had begun before has reached all its processes; see the module."""
    try:
        # no such group, nor can there be (PID_MAX_LIMIT is 2**22): it takes the lock and fails
        os.setpgid(0, 1 << 30)
    except OSError:
        pass
