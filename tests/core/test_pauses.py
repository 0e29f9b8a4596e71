"""A process that is paused for native frames, by this diag, by another one of this user, or by somebody's debugger: what is
read of it then neither begins nor ends a verdict, is no progress, and no stop by a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diag.agent.samplers.rank_context import OwnStops
from diag.launch.runs import start_ticks
from diag.model import Record
from diag.model.observations import ProcessTree
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from diag.sources.host import proc
from diag.sources.host.pauses import Pauses
from diag.sources.waits.decode import blocked_in
from diag.state.stack_activity import Activity
from tests.core.test_gpu_spins import ITEM, SECONDS, activity, job, spins
from tests.facts import ALL_REDUCE, SLEEP, Story, pid_of, stack, tree


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as one:
        yield one
        one.kill()


def pauses_of(process: subprocess.Popen[bytes], place: Path) -> Pauses:
    ticks = start_ticks(process.pid)
    assert ticks
    return Pauses(process.pid, ticks, str(place))


def test_pause_is_seen_by_another_diag_as_it_begins_and_as_it_ends(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    mine, theirs = pauses_of(process, tmp_path), pauses_of(process, tmp_path)
    seen = [theirs.marks]
    with OwnStops(mine).stopping(1.0):
        seen.append(theirs.marks)
    seen.append(theirs.marks)
    assert seen == [0, 1, 2] and mine.marks > 0

    # and the file goes with the process
    mine.forget()
    assert list(tmp_path.glob("*/pauses/*")) == []


def test_file_of_a_process_that_has_ended_is_removed_by_who_comes_next(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ended:
        pauses_of(ended, tmp_path).mark()
        ended.kill()
    pauses_of(process, tmp_path).mark()
    assert [path.name.split("-")[0] for path in tmp_path.glob("*/pauses/*")] == [str(process.pid)]


def test_where_no_file_can_be_written_diag_still_knows_its_own_pauses(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / f"diag-{os.getuid()}").write_text("no folder")
    mine = pauses_of(process, tmp_path)
    mine.mark()
    assert mine.marks == 1 and pauses_of(process, tmp_path).marks == 0


def test_link_in_place_of_the_file_is_neither_followed_nor_read(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    mine, other = pauses_of(process, tmp_path), tmp_path / "another's"
    other.write_text("xxxx")
    folder = tmp_path / f"diag-{os.getuid()}" / "pauses"
    folder.mkdir(parents=True)
    (folder / f"{process.pid}-{start_ticks(process.pid)}").symlink_to(other)
    mine.mark()
    assert other.read_text() == "xxxx" and mine.marks == 1


# -- a rank that spins for its GPU


def reads(
    story: Story, *, cpu: float, pauses: int, spent: float, state: str = "R", switches: int = 0
) -> float:
    """One reading, SECONDS after the last, in which it used this share of a core. Returns what it has used by then."""
    spent += cpu * SECONDS
    one = replace(
        tree(0, story.now, state=state, cpu=spent), run_delay_seconds=0.0, pauses=pauses, switches=switches
    )
    main = stack(0, story.now, ITEM)
    story.tell(one, replace(main, how="remote_stack"))
    story.wait(SECONDS)
    return spent


def spinning() -> tuple[Story, float]:
    """It has spun for a while."""
    story = job()
    spins(story, 10)
    return story, story.now - SECONDS


def test_reading_that_holds_a_pause_of_diag_is_no_end_of_the_wait_and_no_progress() -> None:
    story, spent = spinning()
    moved = story.engine.job.ranks[0].moved["cpu"]
    for number in range(20):
        spent = reads(story, cpu=0.5, pauses=2 * number + 1, spent=spent, switches=5)
        spent = reads(story, cpu=0.6, pauses=2 * number + 2, spent=spent, switches=9)
        spent = reads(story, cpu=1.0, pauses=2 * number + 2, spent=spent, switches=9)
        assert activity(story) is Activity.GPU_SYNC
    assert story.engine.job.ranks[0].moved["cpu"] == moved


def test_one_reading_in_which_it_spins_less_is_somebody_s_pause_and_two_are_its_own() -> None:
    story, spent = spinning()
    spent = reads(story, cpu=0.5, pauses=0, spent=spent, switches=2)
    once = activity(story)
    spent = reads(story, cpu=1.0, pauses=0, spent=spent, switches=2)
    for _ in range(3):
        spent = reads(story, cpu=0.5, pauses=0, spent=spent, switches=4)

    assert (once, activity(story)) == (Activity.GPU_SYNC, Activity.OTHER)
    assert story.now - story.engine.job.ranks[0].moved["cpu"] <= SECONDS


def test_rank_that_gives_its_core_away_often_moves_at_once() -> None:
    story, spent = spinning()
    reads(story, cpu=0.5, pauses=0, spent=spent, switches=40)
    assert story.engine.job.ranks[0].main_cpu_ratio == pytest.approx(0.5)


def test_rank_that_sleeps_is_still_in_one_wait_after_a_pause_woke_it() -> None:
    story = Story([])
    for number in range(8):
        paused = number >= 4
        one = replace(tree(0, story.now), switches=7 + paused, pauses=2 * paused)
        story.tell(one, stack(0, story.now, ALL_REDUCE))
        story.wait(SECONDS)
    assert story.engine.job.ranks[0].asleep == (1000.0, story.now - SECONDS)

    # and a wake-up of its own begins another one
    story.tell(replace(tree(0, story.now), switches=9, pauses=2))
    assert story.engine.job.ranks[0].asleep == (story.now, story.now)


@pytest.mark.parametrize(("kind", "kept"), [("traced", "other"), ("sleep", "sleep")])
def test_what_it_waits_for_is_not_read_while_a_tracer_holds_it(kind: str, kept: str) -> None:
    story = Story([])
    for each in ("other", kind):
        one = ThreadWait(pid_of(0), "MainThread", "t", "", Wait(each))
        story.tell(WaitsRead(0, pid_of(0), 0.5, (ProcessWaits(pid_of(0), 1, "python", (one,)),)))
        story.wait(1.0)
    waits = story.engine.job.ranks[0].waits
    assert waits is not None and waits.process(pid_of(0)).thread().wait.kind == kept  # type: ignore[union-attr]


def test_thread_in_state_t_is_traced_and_one_in_state_T_is_stopped() -> None:
    assert [blocked_in(state, 0, None, None).kind for state in "tT"] == ["traced", "stopped"]


# -- the verdict


def stands(seconds: float) -> Story:
    """Rank 1 is elsewhere, and rank 0 waits for it."""
    story = Story()
    story.still(seconds, {0: ALL_REDUCE, 1: SLEEP})
    return story


def told(story: Story) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(one.id, one.klass, one.ranks) for one in story.findings() if one.id in ("hang", "held-up")]


def held(story: Story, seconds: float, rank: int = 0, state: str = "t") -> None:
    story.still(seconds, {0: ALL_REDUCE, 1: SLEEP}, trees={rank: {"state": state}})


def test_verdict_stands_as_it_is_while_a_debugger_holds_a_rank_and_after() -> None:
    story = stands(60.0)
    before = told(story)
    assert before
    held(story, 30.0)
    during = told(story)
    story.still(10.0, {0: ALL_REDUCE, 1: SLEEP})
    assert before == during == told(story)


def test_none_begins_while_a_debugger_holds_a_rank_and_it_is_said_that_it_is_not_checked() -> None:
    story = stands(6.0)
    held(story, 300.0, rank=1)
    assert told(story) == []
    [gap] = [one for one in story.engine.not_checked() if one.what == "whether rank 1 hangs"]
    assert "state t" in gap.reason

    # nor at once when it lets go: what the debugger held up did not stand still by itself
    story.still(4.0, {0: ALL_REDUCE, 1: SLEEP})
    assert told(story) == []
    story.still(60.0, {0: ALL_REDUCE, 1: SLEEP})
    assert told(story) and not [one for one in story.engine.not_checked() if "rank 1 hangs" in one.what]


def test_stop_by_a_signal_is_told_as_ever() -> None:
    story = stands(6.0)
    held(story, 60.0, rank=1, state="T")
    assert [(klass, ranks) for _, klass, ranks in told(story)] == [("stopped", (1,))]


# -- reading it


def test_record_names_the_tracer_and_counts_the_pauses(process: subprocess.Popen[bytes]) -> None:
    payload = proc.ProcessReader(process.pid).sample()
    assert payload is not None and "tracer" not in payload

    payload |= {"tracer": {"pid": 812, "comm": "gdb"}, "pauses": 4}
    [one] = [fact for fact in proc.parse(Record("proc", payload, 0, "n")) if isinstance(fact, ProcessTree)]
    assert (one.tracer, one.pauses) == ((812, "gdb"), 4)
    for odd in ({"tracer": 7, "pauses": "x"}, {"tracer": {"pid": None}}, {"tracer": {"pid": 3}}):
        [one] = proc.parse(Record("proc", {**payload, **odd}, 0, "n"))
        assert isinstance(one, ProcessTree) and one.tracer is None


def test_reader_sees_who_traces(process: subprocess.Popen[bytes]) -> None:
    traces = (
        "import ctypes, os, sys\n"
        "libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])\n"
        "assert libc.ptrace(16, pid, None, None) == 0, ctypes.get_errno()\n"  # PTRACE_ATTACH
        "os.waitpid(pid, 0x40000000)\n"  # __WALL
        "print('up', flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-c", traces, str(process.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != b"up\n":
            pytest.skip("ptrace is not permitted here")
        payload = proc.ProcessReader(process.pid).sample()
        tracer.kill()
    [one] = [fact for fact in proc.parse(Record("proc", payload, 0, "n")) if isinstance(fact, ProcessTree)]
    assert one.main.state == "t" and one.tracer is not None and one.tracer[0] == tracer.pid
    assert pid_of(0) != tracer.pid and one.tracer[1].startswith("python")
