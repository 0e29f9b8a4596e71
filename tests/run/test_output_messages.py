"""What diag says between the lines of the job's output: nothing is torn, nothing lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.launch import output_file, relay


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[tuple[relay.Relay, output_file.OutputFile, int]]:
    """A relay of both outputs into a pipe: (relay, lane, the pipe's end to read)."""
    read, write = os.pipe()
    lane = output_file.open_output_file(tmp_path / "log")
    relayed = relay.Relay([relay.Sink("both", lane, write)])
    relayed.start()
    yield relayed, lane, read
    relayed.drain(10)
    lane.close()
    os.close(read)
    os.close(write)


def read_exactly(fd: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += os.read(fd, count - len(data))
    return data


def test_a_message_does_not_tear_a_progress_bar(
    piped: tuple[relay.Relay, output_file.OutputFile, int],
) -> None:
    # given a bar on the screen
    relayed, lane, screen = piped
    bar = b"\r\x1b[32m 10%|#  |"
    os.write(lane.write_fd, bar)
    assert read_exactly(screen, len(bar)) == bar
    # when diag speaks
    relayed.say("[diag] message")
    # then it does so below, and the bar is drawn again where its next state will find it
    below = b"\x1b[0m\n[diag] message\n\x1b[32m 10%|#  |"
    assert read_exactly(screen, len(below)) == below
    os.write(lane.write_fd, b"\r 20%|## |\n")
    assert read_exactly(screen, 11) == b"\r 20%|## |\n"


def test_a_message_waits_for_the_end_of_the_line(
    piped: tuple[relay.Relay, output_file.OutputFile, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given half a line
    relayed, lane, screen = piped
    monkeypatch.setattr(relay, "_NEWLINE_WAIT_S", 60)
    os.write(lane.write_fd, b"one ")
    assert read_exactly(screen, 4) == b"one "
    # when diag speaks and then the job ends its line
    relayed.say("[diag] message")
    os.write(lane.write_fd, b"two\nthree\n")
    # then the message comes between two lines
    rest = b"two\n[diag] message\nthree\n", b"two\nthree\n[diag] message\n"
    assert read_exactly(screen, len(rest[0])) in rest


def test_a_message_at_the_end_is_not_lost(piped: tuple[relay.Relay, output_file.OutputFile, int]) -> None:
    relayed, lane, screen = piped
    os.write(lane.write_fd, b"last")
    relayed.say("[diag] message")
    assert relayed.drain(10)
    assert os.read(screen, 100) in (b"last\n[diag] message\n", b"[diag] message\nlast")


@pytest.mark.parametrize(
    ("fed", "left", "redrawn"),
    [
        ([b"a\nb"], b"\n", b"b"),
        ([b"\r 1%", b"\r 2%"], b"\n", b" 2%"),
        ([b" 1%\r"], b"\n", b" 1%\r"),
        ([b"x" * 5000], b"\n", b""),
    ],
)
def test_an_unfinished_line_is_drawn_again_as_the_screen_shows_it(
    fed: list[bytes], left: bytes, redrawn: bytes
) -> None:
    line = relay._Line()
    for data in fed:
        line.feed(data)
    assert (line.at_start, line.leave(), line.redraw()) == (False, left, redrawn)
    line.feed(b"\n")
    assert line.at_start
