"""Long work says on a terminal how far it is, takes the line away when it is done, and says nothing anywhere
else."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyte
import pytest

from diag.engine.journal import segments
from diag.engine.replay import replay
from diag.preflight.manifest.reading import quantity
from diag.text.progress_line import Progress
from diag.text.ticker import Ticker
from tests.cli.terminal import terminal

CAPTURES = Path(__file__).parents[1] / "captures"
RUN = CAPTURES / "h200-live" / "loop-data-hang"
FOLDER = CAPTURES / "loose" / "data_hang"
LOG = CAPTURES / "logs" / "megatron_dpo_4.6.0.log"
DIAG = [sys.executable, "-m", "diag"]


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def bundle(folder: Path) -> Path:
    path = folder / "dump.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for segment in segments(RUN):
            tar.add(segment, segment.name)
    return path


def evidence(kind: str, folder: Path) -> Path:
    if kind == "bundle":
        return bundle(folder)
    if kind == "packed log":
        packed = folder / "train.log.gz"
        packed.write_bytes(gzip.compress(LOG.read_bytes()))
        return packed
    return {"run directory": RUN, "journal": segments(RUN)[0], "folder": FOLDER, "log": LOG}[kind]


@pytest.mark.parametrize("kind", ["run directory", "journal", "bundle", "folder", "log", "packed log"])
def test_reading_of_any_evidence_is_shown_up_to_its_end_and_then_gone(kind: str, tmp_path: Path) -> None:
    # given a terminal, and a clock by which each look is a second after the one before
    stream, ticks = Tty(), itertools.count()
    progress = Progress(stream, clock=lambda: float(next(ticks)))

    replay([evidence(kind, tmp_path)], progress)

    drawn = re.findall(
        r"\r(diag: \[[# ]{16}\] ([\d.]+ [KMG]?i?B) of ([\d.]+ [KMG]?i?B), [\d.]+ [KMG]?i?B/s, [\dmins ]+ left)\x1b\[K",
        stream.getvalue(),
    )
    # no torn and no other line
    assert drawn and stream.getvalue() == "".join(f"\r{line}\x1b[K" for line, _, _ in drawn)
    done = [quantity(at.replace(" ", "").removesuffix("B")) or 0 for _, at, _ in drawn]
    assert done == sorted(done) and drawn[-1][0].startswith(f"diag: [{'#' * 16}]")
    assert len({total for _, _, total in drawn}) == 1

    progress.close()

    screen = pyte.Screen(80, 4)
    pyte.Stream(screen).feed(stream.getvalue())
    assert "".join(screen.display).strip() == ""


@pytest.mark.parametrize("stream", [io.StringIO(), pytest.param(Tty(), id="dumb")])
def test_pipe_and_dumb_terminal_get_no_line(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    if stream.isatty():
        monkeypatch.setenv("TERM", "dumb")
    ticks = itertools.count()
    progress = Progress(stream, clock=lambda: float(next(ticks)))

    replay([RUN], progress)
    progress.close()
    with Ticker(lambda seconds: "x", stream):
        assert not [thread for thread in threading.enumerate() if thread.name == "ticker"]

    assert stream.getvalue() == ""


# --- a hub that takes its time


class SlowHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.answers = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                said: dict[str, object] = {"job": {"world_size": 24, "ranks_seen": 24}}
                if not self.path.startswith("/findings"):
                    assert hub.answers.wait(60)
                    said = {"report": {}, "screen": "the dump", "found": False}
                data = b"<svg/>" if "/flame" in self.path else json.dumps(said).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_GET

            def log_message(self, *words: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def hub() -> Iterator[SlowHub]:
    server = SlowHub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.answers.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("columns", [80, 40])
def test_dump_tells_whom_it_waits_for_until_it_answers(hub: SlowHub, columns: int) -> None:
    with terminal(columns) as seen:
        seen.start([*DIAG, "dump", "--endpoint", hub.url])
        seen.until(lambda: "diag: waiting for 24 ranks: " in seen.text)
        shown = len(seen.drawn)
        seen.until(lambda: len(seen.drawn) > shown + 2)  # it is drawn again in its place
        assert len(seen.lines) == 1

        hub.answers.set()

        assert seen.wait() == 0
        assert seen.text == "the dump"


def test_flame_shows_how_much_is_recorded(hub: SlowHub, tmp_path: Path) -> None:
    with terminal() as seen:
        seen.start(
            [*DIAG, "flame", "3", "--seconds", "1", "--endpoint", hub.url, "-o", "x.svg"], cwd=tmp_path
        )
        seen.until(lambda: re.search(r"diag: \[#+ *\] 1 s of 1 s$", seen.text))
        seen.until(lambda: "s: drawing the graph" in seen.text)

        hub.answers.set()

        assert seen.wait() == 0
        assert seen.text == "diag: recording rank 3 for 1 s\nx.svg"


def test_waiting_writes_nothing_into_a_pipe(hub: SlowHub) -> None:
    process = subprocess.Popen(
        [*DIAG, "dump", "--endpoint", hub.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.0)  # long enough for several lines on a terminal
    hub.answers.set()

    assert process.communicate(timeout=30) == ("the dump\n", "")


def test_terminal_of_a_big_replay_has_the_report_alone_at_the_end(tmp_path: Path) -> None:
    big = tmp_path / "big"
    shutil.copytree(FOLDER, big)
    text = LOG.read_text()
    (big / "train.log").write_text(text * (20_000_000 // len(text)))
    with terminal(80, 100) as seen:
        seen.start([*DIAG, "replay", str(big)])
        seen.until(lambda: re.search(r"^diag: \[#* *\] [\d.]+ [KM]iB of [\d.]+ MiB", seen.text))

        seen.wait()

        assert not re.search(r"iB of", seen.text)
        assert any(line.startswith("The job is") for line in seen.lines[:3])
