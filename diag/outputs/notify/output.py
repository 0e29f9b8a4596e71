"""Starts the notifier beside the hub, which also feeds controllers, says what it says, and at the end gives it the time to
send the last message."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diag.launch.isolated import argv
from diag.launch.runs import start_ticks
from diag.outputs.notify import hook
from diag.outputs.notify.addresses import Address, addresses, lacking
from diag.outputs.notify.journal import ACTIONS, FINDINGS
from diag.outputs.output import Output, OutputContext
from diag.text.errors import DiagError

if TYPE_CHECKING:
    from diag.outputs.feeds.chosen import Chosen
    from diag.settings import Settings

# Ours: a message takes 1-3 s. In a container nothing outlives the job, so the hub waits this long.
_LAST_SECONDS = 15.0
_SECRET = ("DIAG_NOTIFY", "DIAG_ON_FINDING")


def problems(settings: Settings, given: str | None = None) -> list[str]:
    """A line for all that cannot be sent as it is set, before the job starts. The job starts all the same. `given`: the
    option, where the setting comes from the command line."""
    lines: list[str] = []
    if settings.notify:
        try:
            lines += filter(None, [lacking(addresses(settings.notify))])
        except DiagError as error:
            lines.append(f"no message will be sent: {error} ({error.hint})")
    if settings.on_finding and (why := hook.problem(settings.on_finding)):
        lines.append(f"the command of --on-finding will not run: {why}")
    lines += _feeds(settings)[1]
    if given and any(not word.startswith("@") for word in given.split()):
        lines.append(
            "--notify shows the address to all users of this machine (ps): give DIAG_NOTIFY, diag.toml or --notify @FILE"
        )
    return lines


class Notify(Output):
    """Messages to people who are away, the command of `--on-finding`, and what controllers are fed: all from a process of
    its own, which reads the run directory."""

    documented = setting = "notify"

    def __init__(self, run: OutputContext) -> None:
        super().__init__(run)
        self._process: subprocess.Popen[bytes] | None = None
        self._usable = _usable(run.hub.settings)
        self._feeds = _feeds(run.hub.settings)[0]

    @classmethod
    def is_wanted(cls, run: OutputContext) -> bool:
        settings = run.hub.settings
        return bool(settings.notify or settings.on_finding or settings.feed)

    @property
    def place(self) -> str:
        if self._process is None:
            return ""
        names = [address.name for address in self._usable[0]]
        feeds = [one.feed.name for one in self._feeds]
        said = [f"messages to {' and '.join(names)}"] if names else []
        return ", ".join([*said, f"findings to {' and '.join(feeds)}"] if feeds else said)

    def start(self) -> None:
        found, words = self._usable
        if not found and not words and not self._feeds:
            return
        if self.run.hub.run_dir is None:
            self.run.say("diag: no message will be sent: there is no run directory, from which they are made")
            return
        environment = {name: value for name, value in os.environ.items() if name.upper() not in _SECRET}
        try:
            self._process = subprocess.Popen(
                argv("diag.outputs.notify.process"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True, cwd="/", env=environment,
            )  # fmt: skip
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._task(found, words)).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self.run.say(f"diag: no message will be sent: {error.strerror or error}")
            return
        threading.Thread(target=self._relay, name="notifier", daemon=True).start()

    def close(self, returncode: int | None, *, ended: bool) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        if ended:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on by itself
                process.wait(_LAST_SECONDS)

    def _task(self, found: list[Address], words: list[str]) -> Mapping[str, Any]:
        hub, pid = self.run.hub, self.run.pid
        assert hub.run_dir is not None
        return {
            "run_dir": str(hub.run_dir.path),
            "run": {
                "run_id": hub.run_id, "host": os.uname().nodename, "hub_pid": os.getpid(), "pid": pid,
                "hub_start_ticks": start_ticks("self"), "pid_start_ticks": start_ticks(pid),
                "started_at": hub.started_at, "job_id": getattr(hub, "job_id", ""),
            },
            "addresses": [[address.url, address.name] for address in found],
            "check": any(not address.plain for address in found),
            "on_finding": words, "cwd": _cwd(),
            "feeds": [[one.word, one.feed.name, one.feed.of_progress] for one in self._feeds],
            "feed_per_hour": hub.settings.feed_per_hour,
            "per_hour": hub.settings.notify_per_hour, "lang": self.run.lang,
            "begin": {name: _size(hub.run_dir.path / name) for name in (FINDINGS, ACTIONS)},
        }  # fmt: skip

    def _relay(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            self.run.say(line.decode("utf-8", "replace").rstrip())


def _usable(settings: Settings) -> tuple[list[Address], list[str]]:
    """The addresses and the words of the command; those that `problems` has a line on are left out."""
    found: list[Address] = []
    with contextlib.suppress(DiagError):
        found = addresses(settings.notify)
        if lacking(found):
            found = [address for address in found if address.plain]
    words = (
        hook.words_of(settings.on_finding)
        if settings.on_finding and not hook.problem(settings.on_finding)
        else []
    )
    return found, words


def _feeds(settings: Settings) -> tuple[list[Chosen], list[str]]:
    """Those to which something can be sent from here, and a line on each of the others."""
    if not settings.feed:
        return [], []
    from diag.outputs.feeds.chosen import chosen

    try:
        found = [
            (one, one.lacking(os.environ, typed="feed" in settings.of_flags)) for one in chosen(settings.feed)
        ]
    except DiagError as error:
        return [], [f"nothing will be fed: {error} ({error.hint})"]
    return [one for one, line in found if not line], [line for _, line in found if line]


def _size(path: Path) -> int:
    """Of what attempts before this one wrote; 0 where there were none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # removed meanwhile
        return "/"
