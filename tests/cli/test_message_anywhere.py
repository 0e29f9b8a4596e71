"""A message at any byte of what drawing programs write: it stays whole on the screen, and the last frame is
as it is alone."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pyte
import pytest

from diag.launch.relay import _Line

MESSAGE = b"diag| one\ndiag| two\n"


def tqdm_bars(count: int) -> bytes:
    tqdm = pytest.importorskip("tqdm").tqdm
    out = io.StringIO()
    out.write("the job begins\n")
    bars = [
        tqdm(total=4, desc=f"bar {n}", position=n, file=out, ncols=60, mininterval=0, miniters=1)
        for n in range(count)
    ]
    for _ in range(4):
        for bar in bars:
            bar.update()
    for bar in bars:
        bar.close()
    out.write("the job ends\n")
    return out.getvalue().encode()


def rich_live(count: int) -> bytes:
    console_of = pytest.importorskip("rich.console").Console
    live_of = pytest.importorskip("rich.live").Live
    out = io.StringIO()
    console = console_of(file=out, force_terminal=True, width=60, legacy_windows=False)
    console.print("the job begins")
    with live_of(console=console, auto_refresh=False) as live:
        for step in range(5):
            live.update("\n".join(f"bar {n}: {step}/4" for n in range(count)), refresh=True)
    console.print("the job ends")
    return out.getvalue().encode()


def screen_of(data: bytes) -> list[str]:
    screen = pyte.Screen(80, 60)
    pyte.ByteStream(screen).feed(data.replace(b"\n", b"\r\n"))
    return [line.rstrip() for line in screen.display]


def whole_places(data: bytes) -> list[int]:
    """Places between characters and runs of control sequences: a read ends within one so seldom that it may
    show."""
    inside = {
        at
        for match in re.finditer(rb"(?:\r|\x1b\[[0-9;?]*[A-Za-z])+|[\xc0-\xff][\x80-\xbf]+", data)
        for at in range(match.start() + 1, match.end())
    }
    return [at for at in range(len(data) + 1) if at not in inside]


@pytest.mark.parametrize("draw", [tqdm_bars, rich_live])
@pytest.mark.parametrize("count", [1, 3])
def test_message_stays_whole_wherever_it_comes_once_the_first_frame_is_drawn(
    draw: Callable[[int], bytes], count: int
) -> None:
    data = draw(count)
    ends = [line for line in screen_of(data) if line][-count - 1 :]
    # by then each line has been drawn once, and the cursor has gone up
    drawn = len(data) // 4 if count > 1 else 0
    places = [place for place in whole_places(data) if place >= drawn]
    assert len(places) > 50
    for place in places[::4]:
        line = _Line()
        for at in range(0, place, 7):  # as reads come: in pieces
            line.feed(data[at : min(at + 7, place)])
        before, after = (b"", b"") if line.at_start else (line.leave(), line.redraw())

        shown = screen_of(data[:place] + before + MESSAGE + after + data[place:])

        assert "diag| one" in shown, (place, data[place - 60 : place], shown)
        at = shown.index("diag| one")
        assert shown[at + 1] == "diag| two", (place, data[place - 20 : place], shown)
        if place < len(data) // 2:  # frames are still to come
            assert [text for text in shown if text][-count - 1 :] == ends, (
                place,
                data[place - 20 : place],
                shown,
            )
