"""The watched job makes diag, which has more rights, read for it: links in place of its log, of NCCL's file,
of torch's dump and of checkpoints, from another user's rank and from one in another root. What it may not
read comes out in no face."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from diag.agent.rank_logs import RankFiles
from diag.agent.samplers.checkpoints import CheckpointSampler
from diag.agent.samplers.context import WatchedJob
from diag.agent.samplers.sampler import Reporter
from diag.model import Record
from diag.sources.collectives import fr_pipe
from diag.sources.collectives.worker_server import NoAnswer
from diag.sources.network.interfaces import InterfacesReader
from tests.liverun import DIAG, WatchedRun
from tests.otheruser import NOBODY, Start, as_root

pytestmark = [pytest.mark.hardening, as_root]
SECRET = "root:$6$rootonly.s3cret"
# The rank prints, and does `{act}` once it is told to; it ends with 1 when it is told so. Its parent, root's,
# is its launcher.
_RANK = """
import os, subprocess, sys
folder, secret = sys.argv[1:3]
if "RANK" not in os.environ:
    rank = {{**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}}
    with open(folder + "/out0.log", "wb") as out:
        sys.exit(subprocess.run([sys.executable, "-I", *sys.argv], stdout=out, stderr=out, env=rank).returncode)
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
print("loss 0.25 before", flush=True)
open(folder + "/go").read()
{act}
open(folder + "/end").read()
sys.exit(1)
"""
_LINK = 'os.rename(folder + "/out0.log", folder + "/old.log"); os.symlink(secret, folder + "/out0.log")'
_ROTATE = (
    'os.rename(folder + "/out0.log", folder + "/old.log"); os.umask(0o77); new = open(folder + "/out0.log", "w"); '
    'os.dup2(new.fileno(), 1); print("loss 0.25", "after", flush=True)'
)


class Watch(WatchedRun):
    """`diag watch` of root's beside a job of nobody's."""

    def __init__(self, folder: Path, act: str) -> None:
        super().__init__(folder / "runs", folder / "terminal.txt")
        self.folder = folder
        self.states: list[str] = []
        for name in ("go", "end"):
            os.mkfifo(folder / "job" / name)
        (folder / "job" / "rank.py").write_text(_RANK.format(act=act, NOBODY=NOBODY))
        words = [
            sys.executable,
            "-I",
            str(folder / "job" / "rank.py"),
            str(folder / "job"),
            str(folder / "secret"),
        ]
        self.job = subprocess.Popen(words)
        with open(self.out, "wb") as out:
            options = ["--pid", str(self.job.pid), "--port", "0", "--json", "--run-root", str(self.root)]
            self.process = psutil.Popen([*DIAG, "watch", *options], stdout=out, stderr=out)

    def journal(self) -> str:
        """All that it holds by now; the last block is being written."""
        text = ""
        for path in sorted(self.root.glob("*/journal-*")):
            raw = zlib.decompressobj(31)
            with contextlib.suppress(zlib.error):
                text += raw.decompress(path.read_bytes()).decode("utf-8", "replace")
        return text

    def look(self) -> bool:
        """Keeps what any user of the machine is answered, as long as there is a page."""
        url = self.run_json()["url"]
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"{url}/state", timeout=5) as answer,
        ):
            self.states.append(answer.read().decode())
        return True

    def everything(self) -> str:
        files = [
            path.read_text(errors="replace")
            for path in self.root.rglob("*")
            if path.suffix in (".jsonl", ".json")
        ]
        return "\n".join([self.text, self.journal(), *files, *self.states])

    def tell(self, name: str) -> None:
        (self.folder / "job" / name).write_text("")

    def end(self) -> None:
        victims = [*psutil.Process(self.job.pid).children(), self.job] if self.job.poll() is None else []
        for process in [self.process, *victims]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            process.wait()


@contextlib.contextmanager
def watched(folder: Path, act: str) -> Iterator[Watch]:
    (folder / "job").mkdir()
    os.chown(folder / "job", NOBODY, NOBODY)
    (folder / "secret").write_text(f"{SECRET}\n" * 3)
    watch = Watch(folder, act)
    try:
        yield watch
    finally:
        watch.end()


def test_link_that_a_rank_puts_in_place_of_its_log_shows_nothing_of_the_file(place: Path) -> None:
    with watched(place, _LINK) as watch:
        watch.until(lambda: "loss 0.25 before" in watch.journal(), 60)

        watch.tell("go")
        watch.until(lambda: "out0.log cannot be read" in watch.journal() or SECRET in watch.journal(), 30)
        watch.tell("end")
        watch.until(lambda: watch.look() and watch.process.poll() is not None, 60)

        assert "rank-died" in watch.text
        assert SECRET not in watch.everything()


def test_log_that_the_rank_rotates_itself_is_read_on(place: Path) -> None:
    with watched(place, _ROTATE) as watch:
        watch.until(lambda: "loss 0.25 before" in watch.journal(), 60)

        watch.tell("go")

        watch.until(lambda: "loss 0.25 after" in watch.journal(), 30)


def test_interfaces_of_a_container_are_described_by_its_own_files(start: Start, place: Path) -> None:
    """Its /sys is what the job makes of it."""
    lo = place / "jail" / "sys" / "class" / "net" / "lo"
    lo.mkdir(parents=True)
    (lo / "type").write_text("772\n")
    (lo / "flags").symlink_to(place / "secret")
    (lo / "operstate").write_text("unknown\n")
    apart = "import ctypes; ctypes.CDLL(None).unshare(0x40000000)"  # CLONE_NEWNET
    pid = start(0, root=str(place / "jail"), redirect=apart)

    told = InterfacesReader().sample(pid)["net"]["lo"]

    assert (told["operstate"], told["type"], told["flags"]) == ("unknown", "772", None)


class Told:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.lost: list[str] = []
        self.files = RankFiles(
            self._put, lambda path, error: self.lost.append(f"{path.name}: {error.strerror}")
        )

    def _put(self, payload: dict[str, Any] | None, rank: int | None) -> None:
        self.lines += [line[0] for line in payload["lines"]] if payload else []


def test_log_in_another_root_is_followed_there_and_not_into_ours(start: Start, place: Path) -> None:
    jail, told = place / "jail", Told()
    (jail / "logs").mkdir(parents=True)
    log = jail / "logs" / "out.log"
    log.write_text("step 1\n")
    # root in it, as in most containers
    pid = start(0, root=str(jail), redirect=f"os.dup2(os.open({str(log)!r}, os.O_WRONLY), 1)")
    told.files.follow(Path(f"/proc/{pid}/root/logs/out.log"), "stdout:out.log", 0, pid=pid)
    told.files.read_new(None)

    log.rename(jail / "logs" / "out.log.1")
    (jail / "logs" / "new.log").write_text("step 2\n")
    log.symlink_to("/logs/new.log")
    told.files.read_new(None)
    told.files.read_new(None)
    honest = list(told.lines)
    log.unlink()
    log.symlink_to(place / "secret")
    told.files.read_new(None)
    told.files.read_rest()

    assert "step 1" in honest
    assert not [line for line in told.lines if "of root" in line]


@pytest.mark.parametrize("number", [1, 2])
def test_descriptor_of_a_file_that_the_rank_may_not_read_is_not_followed(
    start: Start, place: Path, number: int
) -> None:
    told = Told()
    pid = start(redirect=f"os.dup2(os.open({str(place / 'secret')!r}, os.O_PATH), {number})")

    told.files.follow(place / "secret", f"{'stdout' if number == 1 else 'stderr'}:secret", 0, pid=pid)
    told.files.read_new(None)

    assert told.lines == [] and told.lost == ["secret: it is not the rank's to read"]


@pytest.mark.parametrize("named, seen", [("nccl.log", "secret"), ("own.log", "own.log")])
def test_nccl_debug_file_that_is_a_link(start: Start, place: Path, named: str, seen: str) -> None:
    told = Told()
    pid = start()
    (place / "nccl.log").symlink_to(place / "secret")
    (place / "own.log").write_text("NCCL INFO of its own\n")
    os.chown(place / "own.log", NOBODY, NOBODY)
    told.files.await_nccl(str(place / named), pid, 0)
    os.utime(place / seen, (time.time() + 60, time.time() + 60))

    told.files.read_new(None)
    told.files.read_rest()

    assert [line for line in told.lines if line] == (["NCCL INFO of its own"] if named == "own.log" else [])


@pytest.mark.parametrize("linked", [True, False])
def test_dump_of_torch_that_is_a_link(start: Start, place: Path, linked: bool) -> None:
    pipe, dump = place / "pipe_0.pipe", place / "fr_0"
    os.mkfifo(pipe)
    os.chown(pipe, NOBODY, NOBODY)
    pid = start(env={**os.environ, fr_pipe.PIPE: f"{place}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{place}/fr_"})
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def answer() -> None:
        while not dump.exists():
            with contextlib.suppress(BlockingIOError):
                if os.read(reader, 1):
                    if linked:
                        dump.symlink_to(place / "secret")
                    else:
                        dump.write_text("a dump")
                        os.chown(dump, NOBODY, NOBODY)
            time.sleep(0.01)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        assert fr_pipe.pipe_of(0, pid) == pipe
        if linked:
            with pytest.raises(NoAnswer, match="timed_out"):
                fr_pipe.ask_pipe(0, pid, time.monotonic() + 3)
        else:
            assert fr_pipe.ask_pipe(0, pid, time.monotonic() + 20) == b"a dump"
    finally:
        thread.join(30)
        os.close(reader)


def test_byte_for_torch_is_written_into_a_pipe_of_the_ranks_alone(start: Start, place: Path) -> None:
    (place / "job").mkdir()
    os.chown(place / "job", NOBODY, NOBODY)
    (place / "closed").mkdir(mode=0o700)
    (place / "closed" / "0.pipe").write_text("of root alone")
    pid = start(
        env={**os.environ, fr_pipe.PIPE: f"{place}/closed/", "TORCH_FR_DUMP_TEMP_FILE": f"{place}/fr_"}
    )

    with pytest.raises(NoAnswer):
        fr_pipe.ask_pipe(0, pid, time.monotonic() + 1)

    assert (place / "closed" / "0.pipe").read_text() == "of root alone"


@pytest.mark.parametrize("closed", [True, False])
def test_checkpoints_are_looked_at_as_the_rank(start: Start, place: Path, closed: bool) -> None:
    """A folder that is closed to it is not listed; in one of its own a link leads nowhere that it may not go."""
    save = place / "save"
    checkpoint = save / "iter_0000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata.json").symlink_to(place / "secret")
    (save / "latest_checkpointed_iteration.txt").write_text("1")
    save.chmod(0o700)
    if not closed:
        os.chown(save, NOBODY, NOBODY)
    records: list[Record] = []
    pid = start()
    view = WatchedJob(("python", "train.py", "--save", str(save)), pid, pid, NOBODY)
    watch = CheckpointSampler(Reporter(records.append, "here"), lambda: view, every_seconds=0.1)

    watch._look(30)

    told = json.dumps([record.payload for record in records])
    assert "of root" not in told
    assert ("iter_0000001" in told) is not closed
    assert ("Permission denied" in told) is closed
