"""The notifier: follows a run from outside, tells people and controllers of what it finds and of how it ends, and lives on
when hub, carrier and job are killed.

Started by `notify.output` with its task as the first line of stdin, which stays open as long as the hub lives. What
cannot be sent is told in lines on stdout, for the person in front of the terminal, and in notify.log. It loads little:
messages are made and sent by processes that end with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from diag.launch.isolated import argv
from diag.outputs.feeds.account import Account, newest
from diag.outputs.notify.child import ask, json_of
from diag.outputs.notify.hook import run as run_command
from diag.outputs.notify.journal import RunFollower
from diag.outputs.notify.plan import Change, Pace, Worth

_LOOK_SECONDS = 1.0
_OUTCOME_SECONDS = 60.0  # ours, for reading a whole journal: the last message does not wait longer
_AGAIN_SECONDS = (5.0, 30.0, 120.0)  # ours: a switch that restarts, a proxy that fails over
_LEAVING_SECONDS = 20.0  # a hub that has let go of this process is about to end
_HASTE_SECONDS = 0.1
_GONE_SECONDS = 2.0  # from CMD's end to what the carrier writes of it
_MOST_WAITING = 1000
# Of `--on`: it acts, something of the job does not end, it could not act.
_TOLD_ACTIONS = ("acts", "left", "failed")
_LOG_BYTES = 1 << 20
_PROGRESS_SECONDS = 60.0  # ours: the hub is asked, and a process started for it


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda signo, frame: None)  # and what is started here takes them as usual
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(OSError):
        os.nice(5)
    task = json.loads(sys.stdin.buffer.readline())
    Notifier(task).run()
    return 0


class Notifier:
    """See the module."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._path = Path(task["run_dir"])
        self._follower = RunFollower(self._path, task["run"], task.get("begin", {}))
        host = task["run"]["host"]
        self._worth, self._pace = Worth(host), Pace(task["per_hour"])
        self._worth_a_command = Worth(host, "warning", replaced=True)
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_WAITING)
        self._commands: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_WAITING)
        self._feeds: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_WAITING)
        self._account, self._feed_pace = Account(host), Pace(task["feed_per_hour"])
        self._failed: set[str] = set()  # what was said of feeds: once each
        self._of_progress = any(of_progress for _, _, of_progress in task["feeds"])
        self._progress_at = time.monotonic()
        self._oom_kills = oom_kills()
        self._unwatched = False
        self._left_at: float | None = None  # when the hub let go of this process, or ended
        self._gone_at: float | None = None  # when hub and job were seen to be gone

    def run(self) -> None:
        """Until the job has ended, and all of it is told."""
        workers = []
        if self._task["check"]:
            self._check()
        if self._task["addresses"]:
            workers.append(_worker("messages", self._messages, self._send))
        if self._task["on_finding"]:
            workers.append(_worker("commands", self._commands, self._run_command))
        if self._task["feeds"]:
            workers.append(_worker("feeds", self._feeds, self._feed))
        poll = select.poll()
        poll.register(0, select.POLLHUP)
        while True:
            if self._left_at is not None:
                time.sleep(
                    _HASTE_SECONDS if time.monotonic() - self._left_at < _LEAVING_SECONDS else _LOOK_SECONDS
                )
            elif poll.poll(_LOOK_SECONDS * 1000):
                self._left_at = time.monotonic()
            end = self._end()
            self._take_changes()
            if end is not None:
                break
        if end["event"] == "end":
            held = self._pace.release()
            end.update({"changes": held, "left_out": self._pace.left_out} if held else {})
        if end["event"] != "nothing":
            self._put(self._messages, end)
        self._feed_end(end)
        for work in (self._messages, self._commands, self._feeds):
            work.put(None)
        for worker in workers:
            worker.join()

    # -- what there is to tell ----------------------------------------------------------------------------

    def _take_changes(self) -> None:
        new = self._follower.changes()
        for change in new:
            if self._worth_a_command.take(change):
                self._put(self._commands, change)
        told: list[Change] = [change for change in new if self._worth.take(change)]
        for action in self._follower.actions():
            if action["what"] in _TOLD_ACTIONS:
                self._put(self._messages, {"event": "action", "action": action})
        for changes in self._pace.due(time.monotonic(), told):
            left_out, self._pace.left_out = self._pace.left_out, 0
            self._put(self._messages, {"event": "finding", "changes": changes, "left_out": left_out})
        for change in new:  # one by one: with each goes what is open then
            if self._account.take(change):
                for changes in self._feed_pace.due(time.monotonic(), [change]):
                    self._put_changes(changes)
        for changes in self._feed_pace.due(time.monotonic(), []):
            self._put_changes(changes)
        if self._of_progress and time.monotonic() - self._progress_at >= _PROGRESS_SECONDS:
            self._progress_at = time.monotonic()
            if self._feeds.empty() and self._follower.hub_lives():
                self._put(self._feeds, {"event": "progress"})

    def _put_changes(self, changes: Sequence[Change], **more: Any) -> None:
        account = self._account
        told = {"changes": newest(changes), "open": account.open(), "since": account.since}
        self._put(self._feeds, {"event": "finding", **told, **more})

    def _feed_end(self, end: dict[str, Any]) -> None:
        """What was held back, and that the job is complete."""
        held, code = self._feed_pace.release(), end.get("returncode")
        if held or (code == 0 and self._of_progress):
            self._put_changes(held, event="end", job={"returncode": code, "at": time.time()})

    def _end(self) -> dict[str, Any] | None:
        """The last message, once it is time for it."""
        run = self._follower.run
        if run.get("ended"):
            if run.get("returncode") is None and run["pid"] == run["hub_pid"]:
                return {"event": "nothing"}  # `diag watch` was ended before there was a job
            if run.get("returncode") is None and self._follower.job_lives():
                return {"event": "unwatched"}
            return self._ended(run.get("returncode"), run.get("outcome"))
        if self._left_at is None or self._follower.hub_lives():
            return None
        if self._follower.job_lives():
            if not self._unwatched and time.monotonic() - self._left_at > _LOOK_SECONDS:
                self._unwatched = True
                self._put(self._messages, {"event": "unwatched"})
            return None
        # CMD's end is the carrier's to know, and where that lives it writes it down at once
        self._gone_at = self._gone_at or time.monotonic()
        ended = self._follower.ended()
        if ended is None and time.monotonic() - self._gone_at < _GONE_SECONDS:
            return None
        kills = oom_kills()
        return {
            **self._ended((ended or {}).get("returncode"), self._look_back()),
            "killed": True,
            "oom_kills": kills - self._oom_kills if kills is not None and self._oom_kills is not None else 0,
        }

    def _ended(self, returncode: int | None, outcome: dict[str, Any] | None) -> dict[str, Any]:
        began = self._follower.run.get("started_at")
        seconds = max(0.0, time.time() - began) if began else None
        return {"event": "end", "returncode": returncode, "outcome": outcome or {}, "seconds": seconds}

    def _look_back(self) -> dict[str, Any]:
        """What the journal says that the hub did not get to say."""
        if not self._task["addresses"]:
            return {}
        found = json_of(argv("diag.outputs.notify.outcome", str(self._path)), None, _OUTCOME_SECONDS)
        return found if isinstance(found, dict) else {}

    def _put(self, work: queue.Queue[dict[str, Any] | None], item: dict[str, Any]) -> None:
        try:
            work.put_nowait(item)
        except queue.Full:
            self._say("too many messages wait to be sent: one is left out")

    # -- telling it ---------------------------------------------------------------------------------------

    def _check(self) -> None:
        for answer in ask({"check": True}, self._task["addresses"]):
            self._say(f"no message can go to {answer['name']}: {answer['text']}")

    def _send(self, event: dict[str, Any]) -> None:
        """To each address; again, to those that may take it later."""
        run = {name: value for name, value in self._follower.run.items() if name != "token"}
        if not self._follower.hub_lives():
            run["url"] = None  # the page is gone with it
        event = {**event, "run": {**run, "run_dir": str(self._path)}}
        lang = self._task["lang"]
        self._deliver(
            event["event"],
            self._task["addresses"],
            lambda left: ask({"event": event, "lang": lang}, left),
            lambda name, text: self._say(f"a message did not get to {name}: {text}"),
        )

    def _feed(self, event: dict[str, Any]) -> None:
        """To each controller. That one does not take it is said once; each time is in notify.log."""
        asks = event["event"] == "progress"  # the hub, with its token
        run = {name: value for name, value in self._follower.run.items() if asks or name != "token"}
        event = {**event, "run": {**run, "run_dir": str(self._path)}}
        addresses = [feed[:2] for feed in self._task["feeds"] if not asks or feed[2]]
        sender = "diag.outputs.feeds.sender"
        self._deliver(
            f"feed of {event['event']}",
            addresses,
            lambda left: ask({"event": event}, left, sender),
            lambda name, text: self._say_once(f"the feed {name} did not take it: {text}"),
        )

    def _deliver(
        self,
        what: str,
        left: Sequence[Sequence[str]],
        send: Callable[[Sequence[Sequence[str]]], list[dict[str, Any]]],
        fail: Callable[[str, str], None],
    ) -> None:
        """Again, after a while, to those that may take it later."""
        for pause in (*_AGAIN_SECONDS, None):
            answers = send(left)
            for answer in answers:
                self._log(f"{what} to {answer['name']}: {answer['text']}")
            again = {answer["name"] for answer in answers if not answer["accepted"] and answer["again"]}
            for answer in answers:
                if not answer["accepted"] and (pause is None or answer["name"] not in again):
                    fail(answer["name"], answer["text"])
            left = [address for address in left if address[1] in again]
            if not left or pause is None:
                return
            time.sleep(pause)

    def _run_command(self, change: dict[str, Any]) -> None:
        failed = run_command(self._task["on_finding"], change, self._task["cwd"])
        if failed:
            self._say(f"the command of --on-finding failed: {failed}")

    # -- about itself -------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._log(text)
        with contextlib.suppress(OSError):  # the hub has gone
            os.write(1, f"diag: {text}\n".encode("utf-8", "replace"))

    def _say_once(self, text: str) -> None:
        if text not in self._failed:
            self._failed.add(text)
            self._say(text)

    def _log(self, text: str) -> None:
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with open(
                os.open(self._path / "notify.log", flags, 0o600), "w", encoding="utf-8", errors="replace"
            ) as file:
                if os.fstat(file.fileno()).st_size < _LOG_BYTES:
                    file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def _worker(
    name: str, work: queue.Queue[dict[str, Any] | None], do: Callable[[dict[str, Any]], None]
) -> threading.Thread:
    def take() -> None:
        while (item := work.get()) is not None:
            do(item)

    thread = threading.Thread(target=take, name=name)
    thread.start()
    return thread


def oom_kills() -> int | None:
    """Processes of this process's own memory cgroup that the kernel's OOM killer has ended so far; None where that cannot
    be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, place = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            folder, file = ("memory", "memory.oom_control") if kinds else ("", "memory.events")
            for at in (place, "/"):  # in a container the path may be the host's
                with contextlib.suppress(OSError):
                    text = Path(f"/sys/fs/cgroup/{folder}{at}/{file}").read_text()
                    return int(dict(line.split() for line in text.splitlines())["oom_kill"])
    return None


if __name__ == "__main__":
    sys.exit(main())
