"""The carrier of one `diag run`: starts CMD, carries its output, signals and exit code, and has a hub beside
it that may fail.

It holds no third-party code and little memory: what diag's own analysis needs, or breaks on, is the hub's.
Where there is no hub, CMD runs in diag's own place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from functools import partial

from diag.launch import command as commands
from diag.launch import signals
from diag.launch.acting import Acting, Order
from diag.launch.failures import guarded, threads_report_to
from diag.launch.hub_handle import HubHandle
from diag.launch.isolated import given_environment
from diag.text.errors import DiagError
from diag.text.units import format_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, NoReturn

    from diag.launch.relay import Relay, Sink

_STACK_BYTES = 512 << 10  # of a thread: 8 MiB each are too much under a small ulimit -v
_PREPARE_SECONDS = 60.0  # ours: loading takes 0.3 s, and on a node at load 100 a hundred times as long
_CONCLUDE_SECONDS = 60.0  # ours: the last checks take 1-3 s, with other nodes' up to 30 s
_OTHERS_SECONDS = (
    600.0  # the parts of other nodes have to end too, and grace is the user's; the hub gives up before
)
_DRAIN_SECONDS = 30.0


class _NoHub(Exception):
    """There is no hub to watch CMD; the text says why."""


@dataclass(eq=False)
class Carrier:
    """See the module. `task` is for `hub_process`."""

    words: list[str]
    task: dict[str, Any]
    prepared: signals.Prepared
    held: tuple[int, ...]
    _notes: list[str] = field(default_factory=list)
    _relay: Relay | None = None
    _hub: HubHandle | None = None
    _plan: dict[str, Any] | None = None
    _refused: DiagError | None = None
    _concluded: bool = False
    _interrupted: bool = False  # somebody asked CMD to end
    _acting: Acting | None = None  # where `--on` may end CMD

    def say(self, text: str) -> None:
        if self._relay is None:
            self._notes.append(text)
        else:
            self._relay.say(text)

    def run(self) -> int:
        """CMD's exit code, or diag's where CMD was not started; does not return where CMD was."""
        threading.stack_size(_STACK_BYTES)
        try:
            plan = self._prepare()
            outlets = self._open_outlets(plan)
            relay = self._start_relay(outlets)
        except _NoHub as no:
            self._print_notes()
            self.prepared.witness.close()
            return run_alone(self.words, str(no), self.prepared.mask)
        self._acting = Acting.wanted(self.task, self.prepared.witness.pid)
        terminal = commands.terminal_env(os.isatty(1), unbuffered=not plan["hooked"])
        marks = self._acting.variables() if self._acting is not None else {}
        try:
            command = self._start(outlets, {**given_environment(), **terminal, **plan["env"], **marks})
        except commands.CommandError as error:
            relay.drain()
            relay.close()
            self._print_notes()
            _complain(f"diag: {error}")
            self._drop_hub(5.0)  # it clears its run directory away
            return error.exit_code
        self._carry(command, outlets, relay)

    # -- before CMD ---------------------------------------------------------------------------------------

    def _prepare(self, task: dict[str, Any] | None = None, *, again: bool = False) -> dict[str, Any]:
        """Start the hub, and hear where the output goes and which variables CMD gets. Raises DiagError where
        the settings cannot be used, and _NoHub. `again`: signals are forwarded already."""
        try:
            hub = self._hub = HubHandle.start(self.task if task is None else task)
        except OSError as error:
            raise _NoHub(f"the hub cannot be started: {error.strerror or error}") from None
        deadline = time.monotonic() + _PREPARE_SECONDS
        while self._plan is None and self._refused is None and not hub.wire.gone:
            if time.monotonic() > deadline:
                self._drop_hub()
                raise _NoHub(f"the hub was not ready within {format_seconds(_PREPARE_SECONDS)}")
            if again and self._interrupted:
                self._drop_hub()
                raise _NoHub("the job was asked to end")
            if not again and signal.sigpending() & signals.FORWARDED - {signal.SIGWINCH, signal.SIGCONT}:
                self.prepared.end_if_signalled()
            hub.hear(0.2, self._take)
        if self._refused is not None:
            self._drop_hub()
            if not again:
                self.prepared.witness.close()
            raise self._refused
        if self._plan is None:
            raise _NoHub("the hub cannot start" + (f": {how}" if (how := self._drop_hub()) else ""))
        return self._plan

    def _open_outlets(self, plan: dict[str, Any]) -> tuple[Sink, ...]:
        from pathlib import Path

        from diag.launch.output_file import OutputFileError
        from diag.launch.relay import open_outlets

        if plan["run_dir"] is None:
            return ()
        try:
            return open_outlets(
                Path(plan["run_dir"]), keep_bytes=plan["keep_bytes"], report=self.say, closed=self.held
            )
        except OutputFileError as error:
            self.say(f"diag: {error}; CMD keeps diag's own output, which is then not watched")
            return ()

    def _start_relay(self, outlets: tuple[Sink, ...]) -> Relay:
        """Raises _NoHub where there are not the threads for it, and for CMD and its signals."""
        from diag.launch.relay import Relay

        relay = Relay(outlets, report=self.say)
        try:
            relay.start()
            enough = commands.can_start_threads(2)
        except RuntimeError:
            enough = False
        if not enough:
            self._drop_hub()
            raise _NoHub("no more threads can be started (ulimit -u, pids.max)")
        return relay

    def _start(
        self, outlets: tuple[Sink, ...], env: dict[str, str], words: list[str] | None = None
    ) -> commands.Command:
        outputs = {outlet.stream: outlet for outlet in outlets}
        out = outputs.get("both") or outputs.get("stdout")
        err = outputs.get("both") or outputs.get("stderr")
        if words is None:
            self.prepared.end_if_signalled()
        return commands.start(
            self.words if words is None else words,
            stdout=out.lane.write_fd if out else None,
            stderr=err.lane.write_fd if err else None,
            env=env,
            sigmask=self.prepared.mask,
        )

    def _print_notes(self) -> None:
        for note in self._notes:
            _complain(note)

    # -- beside CMD ---------------------------------------------------------------------------------------

    def _carry(self, command: commands.Command, outlets: tuple[Sink, ...], relay: Relay) -> NoReturn:
        for outlet in outlets:
            outlet.lane.close_write()
        threads_report_to(self.say)
        self._relay = relay
        for note in self._notes:
            relay.say(note)
        forwarder = signals.Forwarder(
            self.prepared, command, before_stop=lambda: self._before_stop(relay), on_signal=self._on_signal
        )
        forwarder.start()
        self._tell_started(command, outlets)
        code, forwards = None, True
        while True:
            self._watch(command)
            order = self._acting.order if self._acting is not None else None
            again = order is not None and order.again is not None and not self._interrupted
            agreed = self._acting is not None and self._acting.agreed  # it may still be started again
            if not again and not agreed:
                forwarder.close()
                forwards = False
            guarded(self.say, "the last checks failed", partial(self._conclude, command, relay))
            if order is None:
                order = self._ended_with_others(command)
            if order is not None:
                code = order.exit_code(command.returncode)
            again = order is not None and order.again is not None
            if not again or self._interrupted or order is None or self._stays():
                break
            started = self._start_again(order, outlets, relay)
            if started is None:
                break
            command = forwarder.target = started
            code = None
        if forwards:
            forwarder.close()
        if relay.drain(_DRAIN_SECONDS):
            relay.close()
        if code is not None:
            os._exit(code)
        commands.exit_as(command)

    def _ended_with_others(self, command: commands.Command) -> Order | None:
        """All nodes had agreed to end it, and this part ended of another's end before it came to that."""
        acting = self._acting
        if acting is None or acting.asked is None or self._interrupted:
            return None
        if acting.asked.again is not None:  # what is left of it would meet the next attempt
            guarded(
                self.say,
                "CMD cannot be ended",
                lambda: acting.end(command, 0, lambda step, text: self.say(f"diag: {text}")),
            )
            return acting.order
        return acting.asked

    def _stays(self) -> bool:
        why = self._acting.stays if self._acting is not None else ""
        if why:
            self.say(f"diag: {why}: it is not started again")
        return bool(why)

    def _watch(self, command: commands.Command) -> None:
        """Until CMD has ended, and all of its tree where it was ended by an order."""
        while command.wait(0) is None:
            if not guarded(self.say, "the hub is not heard any more", lambda: self._await_hub(command)):
                self._drop_hub()
            if self._acting is not None and self._acting.asked is not None:
                self._follow_order(command)

    def _follow_order(self, command: commands.Command) -> None:
        acting, hub = self._acting, self._hub
        assert acting is not None

        def tell(step: str, text: str) -> None:
            self.say(f"diag: {text}")
            self._send(act={"step": step, "text": text})

        if self._interrupted or hub is None:
            acting.asked = None
            why = "the job was asked to end meanwhile" if self._interrupted else "the hub has ended"
            tell("failed", f"{why}: nothing is done")
            return
        guarded(self.say, "CMD cannot be ended", lambda: acting.end(command, hub.pid, tell))

    def _tell_started(
        self, command: commands.Command, outlets: tuple[Sink, ...], begin: Sequence[int] = ()
    ) -> None:
        """`begin`: where in its files the output of this attempt begins."""
        self._send(
            started=command.pid,
            at=time.time(),
            outputs={outlet.stream: str(outlet.lane.path) for outlet in outlets},
            begin=list(begin),
        )

    def _start_again(self, order: Order, outlets: tuple[Sink, ...], relay: Relay) -> commands.Command | None:
        """CMD once more, with a hub of its own; None where it cannot be started. Without a hub it runs unwatched."""
        acting, before = self._acting, self._plan
        assert acting is not None and before is not None and order.again is not None
        words = acting.begin_again(order)
        begin = relay.sizes()
        self._forget_end()
        self._plan, self._concluded = None, False
        task = {**self.task, "words": words, "attempt": acting.to_json(), "run_dir": before["run_dir"]}
        try:
            plan = self._prepare(task, again=True)
        except (_NoHub, DiagError) as error:
            self.say(f"diag: {error}; attempt {acting.attempt} runs unwatched")
            plan = self._plan = before
        if self._interrupted:
            self.say("diag: the job was asked to end: it is not started again")
            self._drop_hub(5.0)
            return None
        terminal = commands.terminal_env(os.isatty(1), unbuffered=not plan["hooked"])
        env = {**given_environment(), **terminal, **plan["env"], **acting.variables()}
        try:
            for outlet in outlets:
                outlet.lane.open_write()
            command = self._start(outlets, env, words)
        except (commands.CommandError, OSError) as error:
            self.say(f"diag: attempt {acting.attempt} cannot be started: {error}")
            self._drop_hub(5.0)
            return None
        finally:
            for outlet in outlets:
                outlet.lane.close_write()
        self.say(
            f"diag: attempt {acting.attempt} of the command has begun (pid {command.pid}), {order.again['text']}"
        )
        self._tell_started(command, outlets, begin)
        if self._interrupted:  # in this moment: it came before there was anybody to send it to
            command.send_signal(signal.SIGTERM)
        return command

    def _await_hub(self, command: commands.Command) -> bool:
        if self._acting is not None:
            self._acting.tidy(command, self._hub.pid if self._hub is not None else 0)
        if self._hub is None:
            command.wait(None if self._acting is None else 60.0)
            return True
        self._hub.hear(0.05 if command.pidfd < 0 else 60.0, self._take, also=command.pidfd)
        if self._hub.wire.gone:
            how = self._drop_hub(5.0)
            why = f" ({how})" if how else ""
            if not self._concluded:  # else it has reported why
                self.say(
                    f"diag: the hub ended while CMD was running{why}; CMD is not touched, its output and exit code still come "
                    f"through, but it is no longer watched (diag watch --pid {command.pid} watches it again)"
                )
        return True

    def _conclude(self, command: commands.Command, relay: Relay) -> None:
        """The hub's last checks and words, which may take a while: signals act on diag itself by now."""
        if self._hub is None:
            self._write_end(command)
            return
        relay.flush(5.0)
        if self._send(ended=command.returncode, sizes=relay.sizes()):
            several = self._acting is not None and self._acting.of_several
            deadline = time.monotonic() + _CONCLUDE_SECONDS + (_OTHERS_SECONDS if several else 0.0)
            while not (self._concluded or self._hub.wire.gone) and time.monotonic() < deadline:
                self._hub.hear(1.0, self._take)
        concluded = self._concluded
        how = self._drop_hub(1.0)
        if not concluded:
            what = (
                f"ended ({how}) before its last checks were done" if how else "did not finish its last checks"
            )
            self.say(f"diag: the hub {what}; what it found until then is in the run directory")
            self._write_end(command)

    def _write_end(self, command: commands.Command) -> None:
        """CMD's end, where no hub could write it into run.json: who follows the run waits for it."""
        if self._plan is None or self._plan["run_dir"] is None:
            return
        try:
            path = os.path.join(self._plan["run_dir"], "ended.json")
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w"
            ) as file:
                file.write(f'{{"returncode": {command.returncode}, "at": {time.time()}}}\n')
        except OSError:
            pass

    def _forget_end(self) -> None:
        with contextlib.suppress(OSError, TypeError):  # there is none, or no run directory
            os.unlink(os.path.join((self._plan or {})["run_dir"], "ended.json"))

    def _take(self, message: dict[str, Any]) -> None:
        if "say" in message:
            self.say(message["say"])
        elif "plan" in message:
            self._plan = message["plan"]
        elif "refused" in message:
            text, hint, code = message["refused"]
            self._refused = DiagError(text, hint=hint, exit_code=code)
        elif "concluded" in message:
            self._concluded = True
        elif "act" in message and self._acting is not None:
            self._acting.take(message["act"])

    def _send(self, **message: Any) -> bool:
        hub = self._hub  # the signals' thread may send while the main thread drops it
        return hub is not None and hub.wire.send(**message)

    def _drop_hub(self, seconds: float = 0.0) -> str:
        hub, self._hub = self._hub, None
        if hub is None:
            return ""
        if self._acting is not None:
            self._acting.spare(hub.pid)
        if not hub.wire.gone:
            hub.wire.send(leave=True)
        return hub.end(seconds)

    # -- on the signals' thread ---------------------------------------------------------------------------

    def _on_signal(self, number: int, sent: bool) -> None:
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            self._interrupted = True
        if number == signal.SIGWINCH:
            self._send(width=commands.columns())
        elif number == signal.SIGCONT:
            self._send(paused=False)
        else:
            self._send(signal=number)

    def _before_stop(self, relay: Relay) -> None:
        """Ctrl-Z: the hub must not take a job that a person stopped, and diag with it, for a job that hangs."""
        self._send(paused=True)
        relay.flush(1.0)


def run_alone(words: list[str], why: str, mask: Iterable[int] | None) -> int:
    """CMD in diag's own place: it is what matters, and it can do without us. Returns only where CMD cannot be
    run."""
    _complain(f"diag: {why}; CMD runs unwatched")
    try:
        commands.run_alone(words, mask)
    except commands.CommandError as error:
        _complain(f"diag: {error}")
        return error.exit_code


def _complain(line: str) -> None:
    """Where there is no relay; what cannot be written (a closed stderr, a full disk) must not be an error of
    its own."""
    try:
        os.write(2, line.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass
