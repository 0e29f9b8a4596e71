"""What a process does that is no rank, and for which a rank waits: where it is in its own code, and why it goes on there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import AsyncTask, FrameVariables, ThreadStack, Variable, VariablesRead
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.sources.logs.output import read_text
from tests.detectors.test_hang import started
from tests.detectors.test_hang_program import read
from tests.facts import ALL_REDUCE, TRAIN, frames, pid_of, stack, tree
from tests.programs import line_of

SERVER, HELPER = 90_001, 90_002
IN_CODE = (*TRAIN, "ask /app/rollouts.py:29", "readinto /usr/lib/python3.11/socket.py:707")
TEXT = """
import subprocess
import sys


def generate(model, prompt, max_len):
    left = max_len - len(prompt)
    while left != 0:
        token = model.step(prompt)  # generates
        left -= 1
        if token == 0:
            break


def serve(conn):
    while True:
        generate(model, conn.recv(), 48)  # serves


def rows(table):
    for row in table:
        convert(row)  # converts


def pack(path):
    tool = subprocess.Popen(["pack", path], stdout=subprocess.PIPE)
    if tool.wait() != 0:  # waits
        print("could not pack", path)


for line in sys.stdin:
    pack(line)  # packs
"""
# As recorded: a server of one thread on a UNIX socket (b06 of the eleventh round of first sight).
COMPUTES = Wait("running")
ASKS = Wait("unix_receive", "recvfrom", 9, others=(Party(SERVER, 0, "python server.py", 5),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(TEXT)
    return tmp_path / "server.py"


def at(path: Path, function: str, mark: str) -> str:
    return f"{function} {path}:{line_of(TEXT, mark)}"


def process(pid: int, wait: Wait, command: str, *more: ThreadWait) -> ProcessWaits:
    state = "R" if wait.kind == "running" else "S"
    thread = ThreadWait(pid, "python", state, "", wait, cpu_ratio=float(state == "R"), same=state == "S")
    return ProcessWaits(pid, 1, command, (thread, *more), job=False)


def told(
    path: Path,
    others: Sequence[ProcessWaits],
    stacks: dict[int, list[str]],
    *,
    wait: Wait = ASKS,
    readings: Sequence[dict[str, str]] = (),
    others_of: Sequence[ThreadStack] = (),
    printed: tuple[Sequence[str], float] = ((), 0.0),
    read_too: VariablesRead | None = None,
) -> Finding:
    """Rank 1 waits so, rank 0 for it; `readings` are of the innermost function of the first of `stacks`."""
    own = ThreadWait(pid_of(1), "MainThread", "S", "", wait, cpu_ratio=0.0, same=True)
    seen = WaitsRead(1, pid_of(1), 0.5, (ProcessWaits(pid_of(1), 1, "python train.py", (own,)), *others))
    story = started()
    lines, ago = printed
    for line in lines:
        story.tell(*read_text(line, "stderr", None))
    story.wait(ago)
    for second in range(0, 40, 2):
        story.tell(tree(0, story.now), stack(0, story.now, ALL_REDUCE))
        story.tell(tree(1, story.now), stack(1, story.now, IN_CODE), seen)
        for pid, lines in stacks.items():
            story.tell(stack(1, story.now, lines, *others_of, pid=pid))
            if second == 20:
                read(story, path, 1, lines)
        if read_too is not None and second == 20:
            story.tell(read_too)
        if second >= 20 and (second - 20) // 2 < len(readings):
            pid, lines = next(iter(stacks.items()))
            values = tuple(Variable(*one) for one in readings[(second - 20) // 2].items())
            frame = frames(lines[-1])[0]
            found = FrameVariables(pid, frame.function, frame.file, frame.line, False, values)
            story.tell(VariablesRead(1, pid, (found,)))
        story.wait(2.0)
    return story.the("held-up")


def test_server_that_computes_is_said_with_its_loop_and_the_count_that_has_passed_its_end(path: Path) -> None:
    lines = [at(path, "serve", "serves"), at(path, "generate", "generates")]
    readings = [{"token": "34"}, {"left": "-110289"}, {"left": "-2109746", "token": "34"}]
    found = told(path, [process(SERVER, COMPUTES, "python server.py")], {SERVER: lines}, readings=readings)

    assert (found.cause, found.ranks) == ("process_is_silent", (1,))
    assert f"pid {SERVER} is in generate and goes round in the loop `while left != 0:` (" in found.summary
    assert (
        "whose condition changes by `left -= 1`" in found.summary
        and "`token` was 34 when read" in found.summary
    )
    assert "`left` went from -110289 to -2109746, away from the 0 at which the loop ends" in found.summary
    assert "compare with `<` or `>`" in found.advice and "see what that one does (above)" in found.advice


@pytest.mark.parametrize(
    "readings",
    [
        [{"left": "40"}, {"left": "31"}],  # it comes to its end
        [{"left": "40"}, {"left": "-3"}],  # another call of the function
        [{"left": "-3"}, {"left": "-3"}],
        [{"left": "<Tensor>"}, {"left": "-9"}],
        [{"left": "-9"}],
    ],
)
def test_of_a_count_that_does_not_move_away_nothing_is_said(
    path: Path, readings: list[dict[str, str]]
) -> None:
    lines = [at(path, "serve", "serves"), at(path, "generate", "generates")]
    found = told(path, [process(SERVER, COMPUTES, "python server.py")], {SERVER: lines}, readings=readings)

    assert "goes round in the loop" in found.summary
    assert "away from" not in found.summary and "equal" not in found.advice


def test_server_that_works_through_rows_is_only_said_to_be_there(path: Path) -> None:
    found = told(
        path, [process(SERVER, COMPUTES, "python server.py")], {SERVER: [at(path, "rows", "converts")]}
    )

    assert f"pid {SERVER} is in rows ({path}:" in found.summary and "at `convert(row)`" in found.summary
    assert "goes round" not in found.summary and "loop" not in found.advice


def test_each_process_on_the_way_is_said_with_its_line(path: Path) -> None:
    """A shipper of output that waits for a program of its own, which computes."""
    child = replace(process(HELPER, COMPUTES, "pack a.log"), parent=SERVER)
    waits = Wait("child", "wait4", others=(Party(HELPER, 0, "pack a.log"),))
    ships = process(SERVER, waits, "python ship.py")
    writes = Wait("pipe_write", "write", 1, "pipe:[7]", others=(Party(SERVER, 0, "python ship.py", 0),))
    lines = [
        at(path, "<module>", "packs"),
        at(path, "pack", "waits"),
        "wait /usr/lib/python3.11/subprocess.py:1264",
    ]
    found = told(
        path,
        [ships, child],
        {SERVER: lines, HELPER: [at(path, "rows", "converts")]},
        wait=writes,
        readings=[{}],
    )

    assert found.cause == "process_does_not_read"
    assert f"pid {SERVER} is in pack ({path}:{line_of(TEXT, 'waits')}), inside wait (" in found.summary
    assert "at `if tool.wait() != 0:`" in found.summary and f"pid {HELPER} is in rows (" in found.summary


def test_thread_that_alone_computes_is_the_one_that_has_not_answered(path: Path) -> None:
    """A server with a thread for each connection, whose main one waits for more of them."""
    one, other = (ThreadWait(tid, "Thread", "R", "", COMPUTES, cpu_ratio=0.9) for tid in (90_010, 90_011))
    idle = replace(other, wait=Wait("condition"), cpu_ratio=0.0, same=True)
    handlers = tuple(
        ThreadStack(tid, "Thread", frames(at(path, "rows", "converts"))) for tid in (90_010, 90_011)
    )
    accepts = Wait("tcp_accept", local="127.0.0.1:80")
    lines = {SERVER: [at(path, "serve", "serves")]}
    alone = told(path, [process(SERVER, accepts, "server", one, idle)], lines, others_of=handlers)
    either = told(path, [process(SERVER, accepts, "server", one, other)], lines, others_of=handlers)

    assert f"pid {SERVER} is in rows ({path}:" in alone.summary
    assert f"pid {SERVER} is in" not in either.summary  # which of the two was asked is not known


@pytest.mark.parametrize("others", [[], [process(SERVER, COMPUTES, "nginx: worker")]])
def test_process_without_a_stack_is_only_named(path: Path, others: list[ProcessWaits]) -> None:
    found = told(path, others, {})

    assert f"pid {SERVER} (`" in found.summary and f"pid {SERVER} is in" not in found.summary


def cried(path: Path, *, frame: str = "rows", file: str = "", ago: float = 9.0) -> Finding:
    """A server that has printed a traceback, into the output that all have in common, and waits for the next request."""
    waits = process(
        SERVER, Wait("unix_receive", "recvfrom", 5, others=(Party(pid_of(1), 0, "python", 9),)), "server"
    )
    trace = (
        "Traceback (most recent call last):",
        f'  File "{file or path}", line {line_of(TEXT, "serves")}, in serve',
        "    generate(model, conn.recv(), 48)",
        f'  File "{file or path}", line {line_of(TEXT, "converts")}, in {frame}',
        "KeyError: 'slot 7'",
    )
    return told(path, [waits], {SERVER: [at(path, "serve", "serves")]}, printed=(trace, ago))


def test_last_error_that_its_program_printed_is_quoted_with_the_line_that_raised_it(path: Path) -> None:
    found = cried(path)

    where = f"{path}:{line_of(TEXT, 'converts')}"
    assert (
        f"the program of pid {SERVER} printed \"KeyError: 'slot 7'\", raised in rows ({where}), "
        in found.summary
    )
    assert found.advice.startswith("Begin with the error quoted")


@pytest.mark.parametrize(
    ("file", "ago"),
    [
        ("/app/other.py", 9.0),
        ("/app/train.py", 9.0),
        ("", 900.0),
    ],  # another program; the ranks' own; long before
)
def test_error_of_another_program_or_of_long_before_is_not_quoted(path: Path, file: str, ago: float) -> None:
    found = cried(path, file=file, ago=ago)

    assert "printed" not in found.summary and "Begin with" not in found.advice


def test_event_loop_of_a_server_is_said_with_its_tasks_and_the_one_that_failed(path: Path) -> None:
    """As recorded of a server on asyncio's streams, whose worker had ended."""
    polls = Wait("poll", "epoll_wait", 6, watched=(Wait("tcp_receive", "", 9), Wait("tcp_accept", "", 7)))
    loop = [
        at(path, "<module>", "packs"),
        "BaseEventLoop._run_once /usr/lib/python3.11/asyncio/base_events.py:1884",
        "EpollSelector.select /usr/lib/python3.11/selectors.py:468",
    ]
    waits = AsyncTask(frames("handle /app/server.py:15"), "future")
    failed = AsyncTask(
        (),
        "",
        "worker",
        "<ValueError: no score>",
        frames("worker /app/server.py:9", "score /app/server.py:5"),
    )
    read_of = FrameVariables(SERVER, "<module>", str(path), line_of(TEXT, "packs"), False, ())
    fact = VariablesRead(1, SERVER, (read_of,), (waits, failed))
    found = told(path, [process(SERVER, polls, "python server.py")], {SERVER: loop}, read_too=fact)

    assert f"pid {SERVER} is in <module> ({path}:" in found.summary
    assert (
        "of its 1 task 1 waits in handle (/app/server.py:15), and its task worker ended with ValueError: no score, "
        in found.summary
    )
    assert "raised in score (/app/server.py:5)" in found.summary
