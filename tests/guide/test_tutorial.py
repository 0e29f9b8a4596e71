"""docs/tutorial.md from its first command to its last on a real job: what it shows must be seen. So must the
Chinese one's."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from diag.cli.main import main
from tests.guide.pages import ROOT, Block, blocks, commands, is_loop, lines
from tests.liverun import DIAG, LiveRun, live_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(280)]
TUTORIAL, CHINESE = ROOT / "docs/tutorial.md", ROOT / "docs/zh/tutorial.md"
_SET_UP = ("git clone", "make ", "source ")  # of the reader's machine; test_commands.py looks at them
_MEMORY = 4 << 30  # "4 GB of memory"


def plain(text: str) -> str:
    """As it is compared: without colours, line breaks, diag's prefix; numbers and paths of runs are those of
    another day.

    >>> plain("diag|   rank 1 waits for 16 s") == plain("rank 1 waits for\\n 3.5 s")
    True
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"^diag\| *", "", text, flags=re.MULTILINE)
    text = re.sub(r"\S*/runs/[\w./-]+", "RUN", text)
    text = re.sub(r"http://[\d.:]+", "URL", text)
    text = re.sub(r"[^\s(]*/(?=diag_job/)", "", text)
    text = re.sub(r"\d+ min( \d+ s)?|\d+(\.\d+)? ms", "0 s", text)
    text = re.sub(r"\d+(\.\d+)?", "0", text)
    return " ".join(text.split())


def missing(shown: str, seen: str) -> list[str]:
    """The pieces of a shown output (between lines `...`) that are not in what was seen, in their order."""
    rest, absent = plain(seen), []
    for piece in re.split(r"^\s*\.\.\.$", shown, flags=re.MULTILINE):
        if plain(piece) in rest:
            rest = rest[rest.index(plain(piece)) + len(plain(piece)) :]
        else:
            absent.append(piece)
    return absent


def test_a_shown_line_that_is_not_seen_is_missed() -> None:
    assert missing("hang at 3 s\n...\nrank 1", "hang\nat 15 s, of rank 4") == []
    assert missing("hang at 3 s\n...\nrank one", "hang at 15 s, of rank 4") == ["\nrank one"]
    assert missing("b\n...\na", "a b") == ["\na"]


class Reader:
    """Types what the tutorial says, in a terminal beside that of the run."""

    def __init__(self, run: LiveRun, folder: Path) -> None:
        self.run = run
        self.folder = folder
        self.seen = ""  # of the last block of commands
        self.code: int | None = None
        binaries = folder / "bin"
        binaries.mkdir()
        for name, words in (("diag", "-m diag"), ("py-spy", None)):
            target = (
                f"exec {sys.executable} {words}" if words else f"exec {Path(sys.executable).parent / name}"
            )
            (binaries / name).write_text(f'#!/bin/sh\n{target} "$@"\n')
            (binaries / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            "DIAG_LANG": "en",
            "DIAG_PORT": "0",
            "DIAG_RUN_ROOT": str(run.root),
        }

    def type(self, line: str) -> None:
        fifo = re.search(r"fifo=(\S+)", self.run.text)
        line = line.replace("RUN_DIR", str(self.run.run_dir)).replace("FIFO", fifo[1] if fifo else "FIFO")
        line = line.replace("LAUNCHER", str(self.launcher())).replace("sleep 20", "sleep 3")
        words: dict[str, Any] = {
            "cwd": self.folder,
            "env": self.environment,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        answer = subprocess.run(["bash", "-c", line], **words, text=True, check=False, timeout=60)
        self.seen, self.code = self.seen + answer.stdout, answer.returncode

    def launcher(self) -> int:
        return int(json.loads((self.run.run_dir / "run.json").read_text())["pid"]) if self.run.run_dir else 0


def shows(block: Block, reader: Reader) -> None:
    """What the block shows was said by the last commands, or by the first terminal."""
    terminal = block.text.startswith(("diag|", "diag: job", "diag 0"))
    seen = (lambda: reader.run.text) if terminal else (lambda: reader.seen)
    if terminal:
        end = time.monotonic() + 30
        while missing(block.text, seen()) and time.monotonic() < end:
            time.sleep(0.2)
    assert missing(block.text, seen()) == [], seen()


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


@pytest.mark.skipif(has_gpu(), reason="the tutorial's outputs are of a machine without a GPU")
def test_tutorial_from_start_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = [line for line in commands(TUTORIAL) if not line.startswith(_SET_UP)]
    started = shlex.split(typed[0])
    assert started[:3] == ["diag", "run", "--"]
    page = [block for block in blocks(TUTORIAL) if block.kind in ("bash", "text")]
    chinese = [block for block in blocks(CHINESE) if block.kind in ("bash", "text")]
    assert [block.kind for block in chinese] == [block.kind for block in page]

    with live_run(tmp_path, [sys.executable, *started[4:]], env={"COLUMNS": "100", "DIAG_LANG": "en"}) as run:
        run.until(run.hang, 120)
        reader = Reader(run, tmp_path)
        assert _memory(run) < _MEMORY
        watch = _attach(reader)
        for block, other in zip(page, chinese, strict=True):
            if block.kind == "bash":
                reader.seen = ""
                for line in lines(block):
                    if "FIFO" in line:  # the last moment of the hang
                        _collected_names_the_same(reader)
                        _attached_says_what_the_guide_shows(watch)
                    if not line.startswith((*_SET_UP, typed[0])):
                        reader.type(line)
                        assert reader.code == (10 if "replay" in line or "dump" in line else 0), reader.seen
                continue
            if block.text.startswith("diag: job failed"):
                os.killpg(run.process.pid, signal.SIGINT)  # Ctrl-C
                assert run.wait(60) == 1
            shows(block, reader)
            if other.text.startswith("hang\n===="):
                assert main(["explain", "hang", "--lang", "zh"]) == 0
                # Chinese has no spaces: lines break where the terminal ends
                said = "".join(capsys.readouterr().out.split())
                for piece in re.split(r"^\s*\.\.\.$", other.text, flags=re.MULTILINE):
                    assert "".join(piece.split()) in said
            else:
                shows(other, reader)
    assert all("<svg" in (tmp_path / name).read_text()[:300] for name in ("flame-rank1.svg", "flame-all.svg"))


def _attach(reader: Reader) -> subprocess.Popen[str]:
    """docs/howto/attach.md on the same hung job, beside the `diag run` that it has."""
    watching = "diag watch --pid PID"
    assert watching in commands(ROOT / "docs/howto/attach.md")
    words = [*DIAG, *shlex.split(watching)[1:-1], str(reader.launcher())]
    environment = {**reader.environment, "DIAG_RUN_ROOT": str(reader.folder / "attached/runs")}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _attached_says_what_the_guide_shows(watch: subprocess.Popen[str]) -> None:
    assert watch.stdout is not None
    said = ""
    for line in watch.stdout:
        said += line
        if "hang (data_loading)" in said:
            watch.send_signal(signal.SIGINT)
            break
    said += watch.stdout.read()
    assert watch.wait(30) == 10
    texts = [block for block in blocks(ROOT / "docs/howto/attach.md") if block.kind == "text"]
    shown = next(block for block in texts if ": watching pid " in block.text)
    assert missing(shown.text, said) == [], said


def _collected_names_the_same(reader: Reader) -> None:
    """docs/howto/collected-evidence.md on the same hung job."""
    (reader.folder / "train.log").write_text(reader.run.text.partition("diag|")[0])
    reader.type(next(line for line in commands(ROOT / "docs/howto/collected-evidence.md") if is_loop(line)))
    assert reader.code == 0, reader.seen
    reader.type("diag replay evidence")
    assert reader.code == 10 and "hang (data_loading): rank 1;" in reader.seen, reader.seen


def _memory(run: LiveRun) -> int:
    """Of the job and all of diag, shared pages once."""
    living = [process for process in [run.process, *run.tree()] if process.status() != psutil.STATUS_ZOMBIE]
    return sum(process.memory_full_info().pss for process in living)


def test_chinese_tutorial_types_the_same_commands() -> None:
    assert [line.removesuffix(" --lang zh") for line in commands(CHINESE)] == commands(TUTORIAL)
