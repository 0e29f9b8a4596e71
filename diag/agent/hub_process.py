"""The hub's process of `diag run`: reads the settings, says how CMD is to be started, then watches it until
it ends.

Whatever fails here is reported in a line through the carrier, which has CMD. When the carrier has gone, this ends
too.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from diag.launch.failures import guarded, threads_report_to
from diag.launch.hub_handle import WIRE_FD
from diag.launch.wire import Link, Wire
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from diag.agent.act.actor import Actor
    from diag.agent.hub import Hub
    from diag.launch.relay import Follower
    from diag.launch.rundir import RunDir
    from diag.outputs.wiring import Outputs
    from diag.settings import Settings


def main() -> int:
    with open(0, "rb", closefd=False) as file:
        task = json.load(file)
    link = Link(_wire())
    threads_report_to(link.say)
    link.start()
    try:
        beside = _prepare(task, link)
    except DiagError as error:
        link.send(refused=[str(error), error.hint, error.exit_code])
        return 0
    started = link.await_start()
    if started is None:
        beside.forget()
        return 0
    beside.watch(started)
    link.send(concluded=True)
    return 0


def _cwd() -> str:
    """Where CMD was started, and this process with it. CMD's own may be another by now: `bash` after a `cd`."""
    try:
        return str(Path.cwd())
    except OSError:  # removed meanwhile
        return ""


def _wire() -> Wire:
    os.set_inheritable(WIRE_FD, False)
    # what diag was given for CMD, a make job server's say, is CMD's
    os.closerange(WIRE_FD + 1, os.sysconf("SC_OPEN_MAX"))
    return Wire(socket.socket(fileno=WIRE_FD))


def _prepare(task: dict[str, Any], link: Link) -> _Beside:
    """Settings, run directory, and the variables that CMD gets. Raises DiagError where the settings cannot be
    used."""
    from diag.settings import load, unread_variables

    # CMD waits: what only some runs need is loaded for these alone
    settings = load(**task["flags"], refused=link.say)
    if on := (task.get("act") or {}).get("on"):
        from diag.agent.act.asked import refuse
        from diag.launch.actions import read_rules

        refuse(read_rules(on))
    if task["flags"]["port"] is not None:  # of a variable only a line: CMD comes first
        from diag.outputs.http.serving import refuse_taken_port

        refuse_taken_port(settings, asked_for=True)
    for line in unread_variables(os.environ):
        link.say(f"diag: {line}")
    if settings.notify or settings.on_finding or settings.feed:
        from diag.outputs.notify.output import problems as notify_problems

        for line in notify_problems(settings, given=task["flags"].get("notify")):
            link.say(f"diag: {line}")
    run_dir = _make_run_dir(settings, link) if "attempt" not in task else _run_dir_again(task)
    hooked = run_dir is not None and settings.inject
    variables = (
        {} if run_dir is None else _variables(settings, run_dir, os.environ, terminal=task["terminal"])
    )
    link.send(
        plan={
            "run_dir": str(run_dir.path) if run_dir else None,
            "keep_bytes": settings.output_max_bytes,
            "hooked": hooked,
            "env": variables,
        }
    )
    return _Beside(task, link, settings, run_dir, variables)


def _make_run_dir(settings: Settings, link: Link) -> RunDir | None:
    from diag.launch.rundir import RunDir

    try:
        run_dir, problems = RunDir.create(settings.run_root)
    except DiagError as error:
        link.say(f"diag: {error}; CMD runs without a journal and with its output not watched ({error.hint})")
        return None
    if problems:
        link.say(f"diag: run directory is {run_dir.path}, because {'; '.join(problems)}")
    return run_dir


def _run_dir_again(task: dict[str, Any]) -> RunDir | None:
    """That of the attempts before this one."""
    from diag.launch.rundir import RunDir

    return RunDir(Path(task["run_dir"]), Path(task["run_dir"]).name) if task["run_dir"] else None


def _variables(
    settings: Settings, run_dir: RunDir, environment: Mapping[str, str], *, terminal: bool
) -> dict[str, str]:
    """What CMD gets beside its own environment."""
    from diag.launch.inject import environment as hook_variables
    from diag.launch.ports import free_port
    from diag.sources.collectives import fr_pipe

    found: dict[str, str] = {}
    if settings.inject:
        # under Yama this process and its own may read them
        found.update(hook_variables(run_dir.path, os.getpid(), environment))
        if not settings.flight_recorder:
            found["DIAG_FLIGHT_RECORDER"] = "0"
        if terminal:
            found["DIAG_LINE_BUFFERED"] = "1"
    elif settings.flight_recorder and fr_pipe.PIPE not in environment:
        found.update(
            {
                name: value
                for name, value in fr_pipe.variables(run_dir.path).items()
                if name not in environment
            }
        )
    if settings.nccl_debug and "NCCL_DEBUG" not in environment and "NCCL_DEBUG_FILE" not in environment:
        # %h.%p: NCCL fills in host and pid, so that ranks do not share a file.
        found["NCCL_DEBUG"] = "INFO"
        found["NCCL_DEBUG_FILE"] = str(run_dir.path / "nccl" / "%h.%p.log")
    if (
        settings.ras != "off"
        and not environment.get("NCCL_RAS_ADDR")
        and environment.get("NCCL_RAS_ENABLE") != "0"
    ):
        port = free_port()  # at NCCL's own all jobs of a host would answer for each other
        if port is not None:
            found["NCCL_RAS_ADDR"] = f"localhost:{port}"
    return found


@dataclass(eq=False)
class _Beside:
    """The hub and what belongs to it, from CMD's start to its end."""

    task: dict[str, Any]
    link: Link
    settings: Settings
    run_dir: RunDir | None
    variables: dict[str, str]
    _outputs: Outputs = field(init=False)
    _follower: Follower | None = None

    def forget(self) -> None:
        """CMD could not be started: there is no run."""
        if self.run_dir is not None:
            self.run_dir.remove()

    def watch(self, started: Mapping[str, Any]) -> None:
        """Until CMD has ended and the last checks are made."""
        say = self.link.say
        hub = guarded(say, "the hub cannot start", self._make_hub)
        if hub is None:
            return
        guarded(say, "the watch ends here", lambda: self._watch(hub, started))
        self.link.await_end()  # where the watch failed: the page stays, and CMD's end is still to be written down
        guarded(say, "the last checks failed", lambda: self._conclude(hub))

    def _make_hub(self) -> Hub:
        from diag.agent.hub import Hub
        from diag.outputs.output import OutputContext
        from diag.outputs.wiring import Outputs
        from diag.text.language import language_for

        hub = Hub(
            self.settings,
            self.run_dir,
            stack_signal=int(self.variables.get("DIAG_STACK_SIGNAL", "0")),
            talk=self.link.say,
            ras_address=self.variables.get("NCCL_RAS_ADDR", os.environ.get("NCCL_RAS_ADDR")),
        )
        encoding = cast("TextIO", SimpleNamespace(encoding=self.task["encoding"]))
        self._lang = language_for(encoding, self.settings.lang)
        self._outputs = Outputs(
            OutputContext(
                hub,
                self.link.say,
                colour=self.task["colour"],
                width=lambda: self.link.width or self.task["width"],
                lang=self._lang,
                has_ended=self.link.has_ended,
            )
        )
        return hub

    def _watch(self, hub: Hub, started: Mapping[str, Any]) -> None:
        from diag.launch.launchers.nodes import nodes_of
        from diag.launch.output_file import read_output_file
        from diag.launch.relay import Follower
        from diag.sources.host import run as run_source

        self.link.on_over = hub.hurry
        self.link.on_signal = lambda number: hub.put(run_source.interrupted(number, hub.host))
        pid = int(started["started"])
        lanes = [(stream, read_output_file(Path(path))) for stream, path in started["outputs"].items()]
        if "attempt" in self.task:
            hub.put(run_source.started_again(**self.task["attempt"], host=hub.host))
        self._follower = Follower(
            lanes, hub.output.take, report=self.link.say, begin=started.get("begin", ())
        )
        self._follower.start()
        hub.output.leave_out(lane.path for _, lane in lanes)
        hub.watch_job(self.task["words"], pid, _cwd())
        self._outputs.start(self.task["words"], pid)
        if not self.task["quiet"]:
            self.link.say(f"diag {hub.version}: watching pid {pid}{self._outputs.places}")
        hub.cluster.join(nodes_of(self.task["words"], os.environ, self.settings.nodes))
        actor = self._actor(hub, started["at"])
        if actor is not None:
            self.link.on_step = actor.step
            actor.start()
        try:
            hub.loop(self.link.is_over)
        finally:
            if actor is not None:
                actor.close()

    def _actor(self, hub: Hub, began: float) -> Actor | None:
        act = self.task.get("act")
        if not act:
            return None
        from diag.agent.act.actor import Actor
        from diag.agent.act.fence import Fence
        from diag.agent.act.orders import Orders, describe
        from diag.agent.act.together import Together, lease_of
        from diag.launch.actions import read_rules

        rules = read_rules(act["on"])
        if not self.task["quiet"]:
            self.link.say(f"diag: {describe(rules, act['after'])}")
        orders = Orders(
            rules,
            act["after"],
            act["grace"],
            self.task["words"],
            began,
            self.task.get("attempt", {}).get("number", 1),
            _cwd(),
            send=lambda order: self.link.send(act=order),
            say=self.link.say,
        )
        root = self.run_dir.path.parent if self.run_dir is not None else None
        together = Together(
            hub.run_id,
            hub.host,
            hub.cluster,
            rules,
            orders.attempt,
            open_lease=lambda: lease_of(root, self.settings.token, hub.run_id),
        )
        fence = Fence(hub.engine, hub.host, lambda: hub.cluster.of_several)
        return Actor(hub, orders, hub.dumps, fence, together)

    def _conclude(self, hub: Hub) -> None:
        from diag.outputs.report import report
        from diag.outputs.terminal.text import shown
        from diag.outputs.view.sentence import summary_line

        returncode = self.link.returncode
        try:
            if self._follower is not None:
                self._follower.end(self.link.sizes)
                if self._follower.thread.is_alive():  # there was a thread for it
                    self._follower.thread.join(5.0)
            hub.output.end()
            # Exit records of ranks are on their way: the kernel told the sidecars at the same moment.
            hub.settle(1.0, lambda: not hub.engine.job.alive_ranks())
            hub.finish(returncode)
        finally:
            self._outputs.close(returncode, ended=returncode is not None)
        if not self.task["quiet"] and returncode is not None:
            document = report(hub.engine)
            seconds = time.time() - (self.link.started or {"at": hub.started_at})["at"]
            run_dir = str(self.run_dir.path) if self.run_dir else ""
            self.link.say(shown(summary_line(document, seconds=seconds, run_dir=run_dir), self._lang))


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # a thread of ours may be blocked in the kernel; nothing is left to tidy
