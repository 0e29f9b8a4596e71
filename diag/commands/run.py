"""`diag run [options] -- CMD ...`: CMD as it is, with diag beside it.

The job comes first: whatever of diag does not work is said in one line, and CMD runs all the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from diag.errors import DiagError

if TYPE_CHECKING:
    from diag.command import Command
    from diag.discovery import SdFile
    from diag.hub import Hub
    from diag.outputs.serving import Serving
    from diag.relay import Outlet, Relay
    from diag.rundir import RunDir
    from diag.settings import Settings
    from diag.signals import Prepared

T = TypeVar("T")

_NO_TERMINAL, _NARROWEST, _WIDEST = 80, 40, 160  # columns of a panel

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    add_hub_options(parser)
    parser.add_argument("--no-inject", action="store_const", const=False, dest="inject", default=None,
                        help="leave PYTHONPATH of CMD alone: no in-rank hook")
    parser.add_argument("--no-nccl-debug", action="store_const", const=False, dest="nccl_debug", default=None,
                        help="do not set NCCL_DEBUG for CMD")
    parser.add_argument("-q", "--quiet", action="store_true", help="print findings only, no line about diag itself")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command to run")


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """Options that every verb with a hub has; None means not given."""
    parser.add_argument("--run-root", type=Path, metavar="DIR", help="make the run directory in DIR")
    parser.add_argument("--host", metavar="ADDRESS", help="HTTP address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="HTTP port (default 9095; 0: any free one)")
    parser.add_argument("--nodes", metavar="auto|off|HOSTS", help="whose hubs join to judge one job: auto (default, needs "
                        "DIAG_TOKEN), off, host[:port],... or @FILE")
    parser.add_argument("--no-http", action="store_const", const=False, dest="http", default=None, help="serve no HTTP")
    parser.add_argument("--stack-seconds", type=float, metavar="S", help="time between stack samples (default 5)")
    parser.add_argument("--ras", choices=("auto", "force", "off"), help="ask NCCL RAS under suspicion (default auto: NCCL 2.28.7 "
                        "and later; force: earlier ones too, which may crash the job)")
    parser.add_argument("--expect-net", metavar="NAME[,NAME]", help="networks that NCCL is meant to use between nodes, such as "
                        "'IB,IBext*' or Socket (default: anything but sockets)")
    parser.add_argument("--rules", type=Path, metavar="DIR", help="a folder of rules beside those that come with diag")
    parser.add_argument("--job-id", metavar="NAME", help="what the job is called in labels (default: Slurm's job id, torchrun's "
                        "--rdzv-id, else the run's id)")
    parser.add_argument("--sd-file", type=Path, metavar="PATH", help="tell Prometheus of this hub in a file for file_sd; in a "
                        "directory: DIR/JOB-NODE.json")


# What diag cannot do without: the relay's three, that of the signals; and CMD, which the same limit counts.
_LEAST_THREADS = 5


def run(args: argparse.Namespace) -> int:
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise DiagError("there is no command to run", hint="diag run -- torchrun --nproc_per_node 8 train.py", exit_code=2)
    if words[0].startswith("-"):
        _refuse_option(words)
    from diag import command as commands
    from diag import signals

    held = commands.hold_closed_stdio()
    try:
        prepared = signals.prepare()  # before threads and large imports
    except OSError as error:
        return _run_alone(words, f"{error.strerror}", None)
    try:
        from diag.settings import load

        refused: list[str] = []
        settings = load(run_root=args.run_root, host=args.host, port=args.port, http=args.http, inject=args.inject,
                        nccl_debug=args.nccl_debug, stack_seconds=args.stack_seconds, ras=args.ras,
                        expected_net=args.expect_net, rules=args.rules, nodes=args.nodes, job_id=args.job_id,
                        sd_file=args.sd_file, refused=refused.append)
        runner = _Runner(words, settings, prepared, held, quiet=args.quiet)
        runner.notes += refused
        return runner.run()
    finally:
        prepared.witness.close()


def _refuse_option(words: list[str]) -> None:
    """Raises DiagError where diag's own option stands behind `--`, or two `--` in a row."""
    parser = argparse.ArgumentParser()
    add(parser)
    name = words[0].partition("=")[0]
    if name in parser._option_string_actions:
        raise DiagError(f"{name} is an option of diag, but stands after `--`, where CMD begins", exit_code=2,
                        hint=f"diag run {name} ... -- CMD")


class _Runner:
    """Puts the parts together: output lane, CMD, signals, hub, server."""

    def __init__(
        self, words: list[str], settings: Settings, prepared: Prepared, held: tuple[int, ...], *, quiet: bool
    ) -> None:
        self.words = words
        self.settings = settings
        self.prepared = prepared
        self.held = held
        self.quiet = quiet
        self.notes: list[str] = []
        self.relay: Relay | None = None
        self.serving: Serving | None = None
        self.sd_file: SdFile | None = None
        self.hub: Hub | None = None

    def say(self, text: str) -> None:
        if self.relay is None:
            self.notes.append(text)
        else:
            self.relay.say(text)

    def run(self) -> int:
        from diag import command as commands
        from diag import signals
        from diag.relay import Relay
        from diag.settings import unread_variables

        if not commands.can_start_threads(_LEAST_THREADS):
            self.prepared.witness.close()
            return _run_alone(self.words, "there are no more threads (ulimit -u, pids.max)", self.prepared.mask)
        self.notes += [f"diag: {line}" for line in unread_variables(os.environ)]
        run_dir = self._make_run_dir()
        outlets = self._open_outlets(run_dir)
        env = self._environment(run_dir)
        outputs = {outlet.stream: outlet for outlet in outlets}
        out = outputs.get("both") or outputs.get("stdout")
        err = outputs.get("both") or outputs.get("stderr")
        self.prepared.end_if_signalled()
        try:
            command = commands.start(
                self.words, stdout=out.lane.write_fd if out else None, stderr=err.lane.write_fd if err else None,
                env=env, sigmask=self.prepared.mask,
            )
        except commands.CommandError as error:
            for outlet in outlets:
                outlet.lane.close()
            print(f"diag: {error}", file=sys.stderr)
            return error.exit_code
        for outlet in outlets:
            outlet.lane.close_write()
        threading.excepthook = self._thread_failed
        early = _EarlyOutput()
        self.relay = relay = Relay(outlets, on_output=early, report=self.say)
        relay.start()
        for note in self.notes:
            relay.say(note)
        forwarder = signals.Forwarder(
            self.prepared, command, before_stop=lambda: relay.flush(1.0),
            on_signal=lambda number, sent: _interrupted(self.hub, number),
        )
        forwarder.start()
        # CMD runs by now: what follows loads half a second of imports.
        self.hub = hub = self._guarded("the hub cannot start", lambda: self._make_hub(run_dir, env))
        early.hand_over(hub.take_output if hub is not None else None)
        if hub is not None:
            self._guarded("the watch ends here", lambda: self._watch(hub, run_dir, command, outlets))
        command.wait()
        forwarder.close()
        if hub is not None:
            self._guarded("the last checks failed", lambda: self._conclude(hub, run_dir, command, relay))
        relay.drain(30.0)
        commands.exit_as(command)

    def _guarded(self, what: str, work: Callable[[], T]) -> T | None:
        """The one place where any failure of diag is caught: CMD goes on, and its output and exit code with it."""
        try:
            return work()
        except Exception as error:
            import traceback

            from diag.errors import is_replaced, shortage

            if lacking := shortage(error):
                self.say(f"diag: {what}: there are no more {lacking}; CMD is not touched")
                return None
            if is_replaced(error):
                self.say(f"diag: {what}: diag was removed or replaced while it ran ({error}); CMD is not touched")
                return None
            self.say(f"diag: {what}: {type(error).__name__}: {error}; CMD is not touched. Please report this:\n"
                     + "".join(traceback.format_exception(error)[-3:]).rstrip())
            return None

    def _thread_failed(self, failed: threading.ExceptHookArgs) -> None:
        """A thread of diag ended by an error: in diag's own words, not as a traceback into the job's output."""
        import traceback

        from diag.errors import shortage

        error = failed.exc_value
        if error is None or failed.exc_type is SystemExit:
            return
        name = failed.thread.name if failed.thread is not None else "?"
        lacking = shortage(error)
        self.say(f"diag: its part {name!r} ends here: there are no more {lacking}; CMD is not touched" if lacking else
                 f"diag: its part {name!r} ends here: {type(error).__name__}: {error}; CMD is not touched. Please report this:\n"
                 + "".join(traceback.format_exception(error)[-3:]).rstrip())

    # -- before CMD ---------------------------------------------------------------------------------------

    def _make_run_dir(self) -> RunDir | None:
        from diag.rundir import RunDir

        try:
            run_dir, problems = RunDir.create(self.settings.run_root)
        except DiagError as error:
            self.say(f"diag: {error}; CMD runs without a journal and with its output not watched ({error.hint})")
            return None
        if problems:
            self.say(f"diag: run directory is {run_dir.path}, because {'; '.join(problems)}")
        return run_dir

    def _open_outlets(self, run_dir: RunDir | None) -> tuple[Outlet, ...]:
        from diag.joblog import LaneError
        from diag.relay import open_outlets

        if run_dir is None:
            return ()
        try:
            return open_outlets(run_dir.path, keep_bytes=self.settings.output_max_bytes, report=self.say, closed=self.held)
        except LaneError as error:
            self.say(f"diag: {error}; CMD keeps diag's own output, which is then not watched")
            return ()

    def _environment(self, run_dir: RunDir | None) -> dict[str, str]:
        from diag.command import terminal_env
        from diag.inject import environment
        from diag.ports import free_port
        from diag.sources import fr_pipe

        env = dict(os.environ)
        hooked = run_dir is not None and self.settings.inject
        env.update(terminal_env(os.isatty(1), unbuffered=not hooked))
        if run_dir is None:
            return env
        if hooked:
            env.update(environment(run_dir.path, os.getpid(), env))
            if not self.settings.flight_recorder:
                env["DIAG_FLIGHT_RECORDER"] = "0"
            if os.isatty(1):
                env["DIAG_LINE_BUFFERED"] = "1"
        elif self.settings.flight_recorder and fr_pipe.PIPE not in env:
            env.update({name: value for name, value in fr_pipe.variables(run_dir.path).items() if name not in env})
        if self.settings.nccl_debug and "NCCL_DEBUG" not in env and "NCCL_DEBUG_FILE" not in env:
            # %h.%p: NCCL fills in host and pid, so that ranks do not share a file.
            env["NCCL_DEBUG"] = "INFO"
            env["NCCL_DEBUG_FILE"] = str(run_dir.path / "nccl" / "%h.%p.log")
        if self.settings.ras != "off" and not env.get("NCCL_RAS_ADDR") and env.get("NCCL_RAS_ENABLE") != "0":
            port = free_port()  # at NCCL's own all jobs of a host would answer for each other
            if port is not None:
                env["NCCL_RAS_ADDR"] = f"localhost:{port}"
        return env

    # -- beside CMD ---------------------------------------------------------------------------------------

    def _make_hub(self, run_dir: RunDir | None, env: dict[str, str]) -> Hub:
        from diag.hub import Hub
        from diag.language import language_for
        from diag.model import Change
        from diag.outputs.jsonl import JsonlOutput
        from diag.outputs.text import panel

        colour = os.isatty(2) and "NO_COLOR" not in os.environ
        lang = language_for(sys.stderr, self.settings.lang)
        changes = JsonlOutput(run_dir.path / "findings.jsonl") if run_dir else None

        def on_change(change: Change) -> None:
            if changes is not None:
                changes.write([change])
            self.say(panel(change, colour=colour, width=_width(), lang=lang))

        signal_number = int(env.get("DIAG_STACK_SIGNAL", "0"))
        return Hub(self.settings, run_dir, stack_signal=signal_number, on_change=on_change, talk=self.say,
                   ras_address=env.get("NCCL_RAS_ADDR"))

    def _watch(self, hub: Hub, run_dir: RunDir | None, command: Command, outlets: Sequence[Outlet]) -> None:
        """Until CMD ends."""
        from diag.launchers.nodes import nodes_of
        from diag.outputs.serving import Serving

        hub.own_output(outlet.lane.path for outlet in outlets)
        hub.watch_job(self.words, command.pid)
        serving = self.serving = Serving(
            hub, self.settings, self.say, lambda: publish(hub, run_dir, serving.url, self.words, command.pid)
        )
        serving.start()
        publish(hub, run_dir, serving.url, self.words, command.pid)
        self.sd_file = start_sd_file(hub, self.settings, self.say)
        if not self.quiet:
            where = f", page {serving.url}" if serving.url else ""
            folder = f", run directory {run_dir.path}" if run_dir else ""
            file = f", settings of {self.settings.file}" if self.settings.file else ""
            self.say(f"diag {hub.version}: watching pid {command.pid}{where}{folder}{file}")
        hub.open_to_nodes = serving.open_to_nodes
        hub.join(nodes_of(self.words, os.environ, self.settings.nodes))
        hub.loop(lambda: command.wait(0) is not None)

    def _conclude(self, hub: Hub, run_dir: RunDir | None, command: Command, relay: Relay) -> None:
        from diag.engine import report
        from diag.outputs.text import summary_line

        if self.sd_file is not None:
            self.sd_file.close()
        relay.flush(5.0)
        hub.end_output()
        # Exit records of ranks are on their way: the kernel told the sidecars at the same moment.
        hub.settle(1.0, lambda: not hub.engine.job.alive_ranks())
        hub.finish(command.returncode)
        publish(hub, run_dir, None, self.words, command.pid, ended=command.returncode)
        if self.serving is not None:
            self.serving.stop()
        if not self.quiet:
            document = report(hub.engine, resolved=True)
            seconds = time.time() - hub.started_at
            relay.say(summary_line(document, seconds=seconds, run_dir=str(run_dir.path) if run_dir else ""))


class _EarlyOutput:
    """Keeps what CMD prints until the hub is there to read it, then passes it through. Called on the relay's thread."""

    _KEEP_BYTES = 16 << 20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[tuple[str, bytes, int]] = []
        self._size = 0
        self._take: Callable[[str, bytes, int], object] | None = None

    def __call__(self, stream: str, data: bytes, offset: int) -> None:
        with self._lock:
            if self._take is not None:
                self._take(stream, data, offset)
            elif self._size < self._KEEP_BYTES:
                self._kept.append((stream, data, offset))
                self._size += len(data)

    def hand_over(self, take: Callable[[str, bytes, int], object] | None) -> None:
        """None: there is nobody to read it, what comes is forgotten."""
        with self._lock:
            self._take = take or (lambda stream, data, offset: None)
            for chunk in self._kept:
                self._take(*chunk)
            self._kept.clear()


def _run_alone(words: list[str], why: str, mask: Iterable[int] | None) -> int:
    """CMD in diag's own place: it is what matters, and it can do without us. Returns only where CMD cannot be run."""
    from diag import command as commands

    print(f"diag: {why}; CMD runs unwatched", file=sys.stderr, flush=True)
    try:
        commands.run_alone(words, mask)
    except commands.CommandError as error:
        print(f"diag: {error}", file=sys.stderr)
        return error.exit_code


def _interrupted(hub: Hub | None, number: int) -> None:
    import signal

    from diag.sources import run as run_source

    if hub is not None and number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        hub.put(run_source.interrupted(number, hub.host))


def start_sd_file(hub: Hub, settings: Settings, say: Callable[[str], None]) -> SdFile | None:
    """The file by which Prometheus finds this hub, where one was asked for and there is a server to find."""
    if settings.sd_file is None:
        return None
    from diag.discovery import SdFile

    if not hub.address:
        say(f"diag: {settings.sd_file} is not written: without HTTP there is nothing to scrape")
        return None
    return SdFile(settings.sd_file, hub, say).start()


def publish(
    hub: Hub, run_dir: RunDir | None, url: str | None, words: list[str], pid: int, *, ended: int | None = None
) -> None:
    """What other commands need to find this run."""
    if run_dir is None:
        return
    from diag.launchers import redacted

    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    run_dir.publish({
        "diag_version": hub.version, "argv": redacted(words), "pid": pid, "hub_start_ticks": int(stat[19]),
        "url": url, "token": hub.token, "started_at": hub.started_at,
        "nccl_ras_addr": hub.ras.address, "tls_ca": _own_certificate(hub),
        "settings_file": str(hub.settings.file) if hub.settings.file else None,
        "ended": ended is not None, "returncode": ended,
    })


def _own_certificate(hub: Hub) -> str | None:
    """By which commands on this machine trust the hub."""
    path = hub.settings.tls_ca or hub.settings.tls_cert
    return str(path.absolute()) if path is not None else None


def _width(fd: int = 2) -> int:
    """Columns for lines on this descriptor; 80 where it is no terminal."""
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(fd).columns or _NO_TERMINAL
    except (OSError, ValueError):
        columns = _NO_TERMINAL
    return max(_NARROWEST, min(_WIDEST, columns))
