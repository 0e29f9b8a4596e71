"""Process trees as they were: torchrun, deepspeed, accelerate, `swift` and `megatron`, on a CPU machine and
on H200s.

Each row of a capture is a process: pid, parent, threads, state, command; a line with # begins another moment.
Environments were not captured: ranks get what their launcher sets, and all below them inherit it, as they do.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag.agent.rank_finder import RankFinder

TREES = Path(__file__).parents[1] / "captures" / "trees"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}
DEEPSPEED = {"CROSS_RANK": "0", "CROSS_SIZE": "1"}

Row = tuple[int, int, int, str, str]

# capture: pids of ranks, how their launcher tells them
RANKS: dict[str, tuple[list[int], dict[str, str]]] = {
    "torchrun": ([19918, 19919], TORCHRUN),
    "torchrun_standalone": ([19962, 19963], TORCHRUN),
    "deepspeed": ([20168, 20169], DEEPSPEED),
    "accelerate_multi_gpu": ([20114, 20115], TORCHRUN),
    "swift_dense": ([597, 598], TORCHRUN),
    "swift_moe_data_loop": ([18629, 18630], TORCHRUN),
    "megatron_async_save": ([14465, 14466], TORCHRUN),
    "h200_megatron_first_step": ([912, 913], TORCHRUN),
    "h200_megatron_steps": ([912, 913], TORCHRUN),
    "h200_megatron_4ranks": ([1228, 1229, 1230, 1231], TORCHRUN),
}


def moments(name: str) -> Iterator[list[Row]]:
    rows: list[Row] = []
    for line in (TREES / f"{name}.txt").read_text().splitlines():
        if line.startswith("#"):
            if rows:
                yield rows
            rows = []
        else:
            pid, parent, threads, state, command = line.split("\t")
            rows.append((int(pid), int(parent), int(threads), state, command))
    yield rows


def write(proc: Path, rows: list[Row], ranks: list[int], told: dict[str, str]) -> None:
    """The moment as /proc shows it. Who is a rank, or below one, has its variables; a zombie shows nothing of
    itself."""
    shutil.rmtree(proc, ignore_errors=True)
    proc.mkdir()
    parents = {pid: parent for pid, parent, *_ in rows}
    for pid, parent, threads, state, command in rows:
        folder = proc / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        children = " ".join(str(child) for child, above in parents.items() if above == pid)
        (folder / "task" / str(pid) / "children").write_text(children)
        fields = [state[0], parent, *[0] * 15, threads, 0, 100 + pid, *[0] * 30]
        (folder / "stat").write_text(f"{pid} (python3) {' '.join(map(str, fields))}")
        above = pid
        while above in parents and above not in ranks:
            above = parents[above]
        gone = state.startswith("Z") or command.startswith("[")
        variables = (
            {}
            if above not in ranks or gone
            else {
                **told,
                "RANK": str(ranks.index(above)),
                "LOCAL_RANK": str(ranks.index(above)),
                "WORLD_SIZE": str(len(ranks)),
            }
        )
        (folder / "environ").write_text("\0".join(f"{name}={value}" for name, value in variables.items()))
        (folder / "cmdline").write_text("" if gone else _argv(command))
        if not gone:
            (folder / "exe").symlink_to("/usr/local/bin/python3.11")


def _argv(command: str) -> str:
    """ps joins the words of a command; those of `-c` are one."""
    head, code, rest = command.partition(" -c ")
    return "\0".join([*head.split(), "-c", rest]) if code else "\0".join(command.split())


@pytest.mark.parametrize("name", RANKS)
def test_ranks_of_a_real_tree_are_found_once_each_and_nothing_else_is_a_rank(
    name: str, tmp_path: Path
) -> None:
    """DataLoader and compile workers, resource trackers, spawned managers and forked writers have a rank's
    variables too."""
    ranks, told = RANKS[name]
    finder, found = None, []

    for rows in moments(name):
        write(tmp_path / "proc", rows, ranks, told)
        finder = finder or RankFinder(rows[0][0], "host", tmp_path / "proc")
        for _ in range(2):
            found += [(item.placement.rank, item.placement.pid) for item in finder.scan()]

    assert found == list(enumerate(ranks))


def test_accelerate_with_cpu_alone_starts_one_process_without_a_rank_which_is_the_job(tmp_path: Path) -> None:
    """`accelerate launch --cpu --num_processes 2` without MPI starts one and sets no RANK."""
    *_, rows = moments("accelerate_cpu")
    write(tmp_path / "proc", rows, [], {})
    finder = RankFinder(rows[0][0], "host", tmp_path / "proc")

    assert finder.scan() == []
    sole = finder.sole_process()
    assert sole is not None and sole.placement.pid == 20011


def test_helper_that_outlives_its_rank_is_not_that_rank_started_again(tmp_path: Path) -> None:
    """ms-swift 4.6.0 with --async_save, seen 2026-11-22: the rank's main thread ends first, so that for a
    moment nobody lists its children; then the launcher's own parent has them."""
    launcher, rank = (
        (1, 0, 1, "S", "python3 launch.py"),
        (10, 1, 9, "S", "python3 -u rlhf.py --rlhf_type dpo"),
    )
    tracker = (11, 10, 1, "S", "python3 -B -c from multiprocessing.resource_tracker import main;main(118)")
    manager = (
        12,
        10,
        3,
        "S",
        "python3 -B -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=119)",
    )
    proc = tmp_path / "proc"
    write(proc, [launcher, rank, tracker, manager], [10], TORCHRUN)
    variables = (proc / "10" / "environ").read_text()
    finder = RankFinder(1, "host", proc)
    assert [item.placement.pid for item in finder.scan()] == [10]

    # when the rank has ended but for its last thread, and then for good
    (proc / "10" / "task" / "10" / "children").write_text("")
    assert finder.scan() == []
    write(proc, [launcher, (11, 1, *tracker[2:]), (12, 1, *manager[2:])], [], {})
    for pid in ("11", "12"):
        (proc / pid / "environ").write_text(variables)

    # then neither is the rank, and its next process is
    assert finder.scan() == []
    write(proc, [launcher, (20, 1, *rank[2:])], [20], TORCHRUN)
    assert [item.placement.pid for item in finder.scan()] == [20]


def test_helper_that_was_never_seen_below_its_rank_is_no_rank_either(tmp_path: Path) -> None:
    """diag came late: the rank is gone, its resource tracker and a compile worker are not."""
    launcher = (1, 0, 1, "S", "python3 launch.py")
    tracker = (11, 1, 1, "S", "python3 -B -c from multiprocessing.resource_tracker import main;main(118)")
    compiler = (
        12,
        1,
        1,
        "S",
        "python3 /opt/torch/_inductor/compile_worker/__main__.py --pickler=torch._inductor.x",
    )
    write(tmp_path / "proc", [launcher, tracker, compiler], [11, 12], TORCHRUN)

    assert RankFinder(1, "host", tmp_path / "proc").scan() == []


def test_rank_that_multiprocessing_spawned_is_a_rank(tmp_path: Path) -> None:
    launcher = (1, 0, 1, "S", "python3 launch.py")
    spawned = (
        11,
        1,
        1,
        "S",
        "python3 -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6)",
    )
    write(tmp_path / "proc", [launcher, spawned], [11], TORCHRUN)

    assert [item.placement.pid for item in RankFinder(1, "host", tmp_path / "proc").scan()] == [11]
