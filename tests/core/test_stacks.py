"""What stacks of real hangs say: py-spy on H200 jobs, qualified names (Python 3.11 and later) and plain ones
(3.10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import Frame, Iteration, StackSample, ThreadStack
from diag.sources.stacks import pyspy
from diag.state import stack_activity
from diag.state.stack_activity import Activity, child_role, is_idle_worker, read_stack, steps
from diag.text.units import format_path
from tests.facts import Story

STACKS = Path(__file__).parents[1] / "captures" / "stacks"


def sample(name: str, *, plain: bool = False) -> StackSample:
    threads = json.loads((STACKS / f"{name}.json").read_text())
    if plain:  # py-spy of a Python up to 3.10 gives the function's own name only
        for thread in threads:
            for frame in thread["frames"]:
                frame["name"] = frame["name"].rpartition(".")[2]
    payload = {"pid": threads[0]["pid"], "stdout": threads}
    return next(
        fact
        for fact in pyspy.parse(Record("pyspy", payload, rank=0, at=1.0))
        if isinstance(fact, StackSample)
    )


def main_of(name: str, *, plain: bool = False) -> ThreadStack:
    thread = sample(name, plain=plain).main
    assert thread is not None
    return thread


def thread(*frames: str) -> ThreadStack:
    """ "function file:line" strings, outermost first."""
    made = []
    for text in frames:
        function, _, place = text.partition(" ")
        file, _, line = place.rpartition(":")
        made.append(Frame(function, file, int(line)))
    return ThreadStack(1, "MainThread", tuple(made))


@pytest.mark.parametrize("plain", [False, True], ids=["qualified", "plain"])
@pytest.mark.parametrize(
    ("name", "activity", "where", "caller"),
    [
        ("data_hang_rank1", Activity.DATA, "__next__", "main"),
        ("data_hang_rank0", Activity.GPU_SYNC, "synchronize", "main"),
        ("skip_collective_rank0", Activity.GPU_SYNC, "synchronize", "main"),
        ("skip_collective_rank1", Activity.OTHER, "main", "<module>"),
        ("mismatch_op_rank0", Activity.GPU_SYNC, "synchronize", "main"),
        ("mismatch_op_rank1", Activity.GPU_SYNC, "synchronize", "main"),
        ("rank_killed_rank0", Activity.GPU_SYNC, "synchronize", "main"),
        ("straggler_rank1", Activity.OTHER, "main", "<module>"),
        (
            "megatron_data_hang_rank0",
            Activity.COLLECTIVE,
            "reduce_scatter_tensor",
            "_reduce_scatter_along_first_dim",
        ),
        ("megatron_data_hang_rank1", Activity.DATA, "__next__", None),
        ("mega4_rank2", Activity.DATA, "__next__", None),
        ("mega4_rank0", Activity.GPU_SYNC, "synchronize", "_communicate_shapes"),
        ("mega4_rank1", Activity.GPU_SYNC, "synchronize", "_communicate_shapes"),
        ("mega4_rank3", Activity.GPU_SYNC, "synchronize", "_maybe_dtoh_and_synchronize"),
        ("megatron_healthy_epoch0_rank0", Activity.OTHER, "forward", "_call_impl"),
        ("megatron_healthy_steps_rank1", Activity.GPU_SYNC, "synchronize", "_maybe_dtoh_and_synchronize"),
    ],
)
def test_main_thread_of_a_real_rank_is_read(
    name: str, activity: Activity, where: str, caller: str | None, plain: bool
) -> None:
    reading = read_stack(main_of(name, plain=plain))

    assert reading.activity is activity
    assert reading.where is not None and reading.where.function.rpartition(".")[2] == where
    if caller is not None:
        assert reading.caller is not None and reading.caller.function.rpartition(".")[2] == caller
    assert reading.context is None


def test_who_waits_for_a_batch_is_named_by_the_loop_that_asked_for_it() -> None:
    caller = read_stack(main_of("megatron_data_hang_rank1")).caller

    assert caller is not None
    assert "torch/utils/data" not in caller.file


@pytest.mark.parametrize(
    ("name", "idle"),
    [
        ("data_hang_rank1_worker", False),
        ("megatron_data_hang_rank1_worker", False),
        ("megatron_data_hang_rank0_compiler", True),
    ],
)
def test_worker_that_reads_is_not_idle_and_a_compiler_that_waits_is(name: str, idle: bool) -> None:
    assert is_idle_worker(sample(name)) is idle


CHILDREN = json.loads((STACKS / "children_4.6.0.json").read_text())


@pytest.mark.parametrize("child", CHILDREN, ids=[child["name"] for child in CHILDREN])
def test_child_of_a_real_rank_is_told_by_what_it_is_for(child: dict[str, Any]) -> None:
    """Of a fork the frames of the rank that forked it stand outside of its own."""
    frames = tuple(Frame(function, file, line) for function, file, line in child["frames"])
    found = StackSample(0, 12, (ThreadStack(12, "MainThread", frames),), "remote_stack", 1.0, 10)

    assert (child_role(found), is_idle_worker(found)) == (child["role"], child["idle"])


def test_module_of_the_checkpointing_that_is_being_imported_is_no_save() -> None:
    # megatron-core 0.16.1, a rank before its first step
    importing = thread(
        "<module> /app/train.py:12",
        "_find_and_load <frozen importlib._bootstrap>:1176",
        "<module> megatron/core/dist_checkpointing/__init__.py:14",
        "_call_with_frames_removed <frozen importlib._bootstrap>:241",
        "<module> torch/distributed/checkpoint/__init__.py:3",
        "get_data <frozen importlib._bootstrap_external>:1073",
    )

    reading = read_stack(importing)

    assert (reading.activity, reading.context) == (Activity.OTHER, None)


def test_worker_that_waits_for_an_index_is_idle() -> None:
    worker = thread(
        "_worker_loop torch/utils/data/_utils/worker.py:293",
        "get multiprocessing/queues.py:113",
        "poll multiprocessing/connection.py:257",
    )

    assert is_idle_worker(StackSample(0, 1, (worker,), "pyspy", 1.0, 2))
    assert is_idle_worker(StackSample(0, 1, (), "pyspy", 1.0, 2))


@pytest.mark.parametrize(
    ("frames", "activity", "context"),
    [
        # an empty and an unknown stack
        ((), Activity.OTHER, None),
        (("main /app/train.py:3",), Activity.OTHER, None),
        # a lock of the user's own, and the same lock inside what it belongs to
        (("main /app/train.py:3", "acquire threading.py:3"), Activity.LOCK, None),
        (
            (
                "main /app/train.py:3",
                "save_checkpoint megatron/training/checkpointing.py:1",
                "wait threading.py:3",
            ),
            Activity.CHECKPOINT,
            None,
        ),
        (
            ("_exit_function multiprocessing/util.py:3", "join threading.py:3"),
            Activity.TEARDOWN,
            Activity.TEARDOWN,
        ),
        # a collective inside a save is a collective, of the save
        (
            ("save_checkpoint /app/save.py:1", "barrier torch/distributed/distributed_c10d.py:3"),
            Activity.COLLECTIVE,
            Activity.CHECKPOINT,
        ),
        # the first communicator is made inside the first collective
        (
            (
                "all_reduce torch/distributed/distributed_c10d.py:3",
                "_new_process_group_helper torch/distributed/distributed_c10d.py:9",
            ),
            Activity.COMM_INIT,
            None,
        ),
        (
            (
                "init_process_group torch/distributed/distributed_c10d.py:1",
                "wait torch/distributed/rendezvous.py:3",
            ),
            Activity.RENDEZVOUS,
            None,
        ),
        # the autograd engine alone may hide DDP's reducer; what it calls back into decides
        (("backward /app/t.py:1", "_engine_run_backward torch/autograd/graph.py:3"), Activity.BACKWARD, None),
        (
            (
                "_engine_run_backward torch/autograd/graph.py:3",
                "hook /app/t.py:9",
                "all_reduce torch/distributed/distributed_c10d.py:3",
            ),
            Activity.COLLECTIVE,
            None,
        ),
        (("_engine_run_backward torch/autograd/graph.py:3", "hook /app/t.py:9"), Activity.OTHER, None),
        (("f /app/t.py:1", "acquire filelock/_api.py:2", "sleep /app/t.py:1"), Activity.FILE_LOCK, None),
        (("map /opt/lib/python3.12/site-packages/datasets/arrow_dataset.py:3",), Activity.PREPROCESS, None),
    ],
)
def test_innermost_frame_that_names_a_wait_decides(
    frames: tuple[str, ...], activity: Activity, context: Activity | None
) -> None:
    reading = read_stack(thread(*frames))

    assert (reading.activity, reading.context) == (activity, context)


@pytest.mark.parametrize(
    "file", ["/app/datasets/reader.py", "/home/user/triton/model.py", "/app/project/safetensors/io.py"]
)
def test_folder_of_the_user_is_not_the_library_of_that_name(file: str) -> None:
    assert read_stack(thread("main /app/train.py:3", f"fetch {file}:7")).activity is Activity.OTHER


def test_poll_loop_below_a_wait_is_no_progress() -> None:
    # given a rank that waits for a batch, polled at two moments
    outer = ("main /app/train.py:3", "__next__ torch/utils/data/dataloader.py:741")
    first = thread(*outer, "_try_get_data torch/utils/data/dataloader.py:1295", "wait threading.py:331")
    second = thread(*outer, "_try_get_data torch/utils/data/dataloader.py:1310", "get queue.py:180")

    assert steps(first) == steps(second)


def test_next_step_is_progress_although_the_wait_is_the_same() -> None:
    inner = ("__next__ torch/utils/data/dataloader.py:741",)

    assert steps(thread("main /app/train.py:3", *inner)) != steps(thread("main /app/train.py:4", *inner))


def test_line_of_code_that_no_table_names_is_part_of_where_it_stands() -> None:
    assert steps(thread("main /app/train.py:3")) != steps(thread("main /app/train.py:4"))


@pytest.mark.parametrize("name", ["megatron_data_hang_rank0", "mega4_rank0", "data_hang_rank1"])
def test_signature_of_a_real_stack_ends_at_its_wait(name: str) -> None:
    stack = main_of(name)
    where = read_stack(stack).where

    assert where is not None
    assert steps(stack)[-1] == f"{where.function} ({format_path(where.file)})"


@pytest.mark.parametrize(
    ("file", "short"),
    [
        (
            "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py",
            "torch/utils/data/dataloader.py",
        ),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        (
            "/root/.pyenv/versions/3.11.7/lib/python3.11/multiprocessing/queues.py",
            "multiprocessing/queues.py",
        ),
        ("/app/train.py", "/app/train.py"),
        ("/home/user/project/src/data/reader.py", "/home/user/project/src/data/reader.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("", ""),
    ],
)
def test_path_of_own_code_is_whole_and_of_an_installed_package_its_name(file: str, short: str) -> None:
    assert format_path(file) == short


FRAMES = st.builds(
    Frame,
    st.sampled_from(
        [
            "wait",
            "all_reduce",
            "a.<locals>.wait",
            "",
            "save_checkpoint",
            "_exit_function",
            "_engine_run_backward",
        ]
    ),
    st.sampled_from(
        [
            "",
            "threading.py",
            "torch/distributed/distributed_c10d.py",
            "x/torch/utils/data/dataloader.py",
            "multiprocessing/util.py",
            "torch/autograd/graph.py",
            "torch/distributed/c10d_logger.py",
        ]
    ),
    st.integers(-1, 5),
)


@given(frames=st.lists(FRAMES, max_size=8))
def test_any_stack_is_read(frames: list[Frame]) -> None:
    stack = ThreadStack(1, "", tuple(frames))

    reading = read_stack(stack)

    assert reading.where is None if not frames else reading.where in frames
    assert steps(stack) == steps(stack)


def test_thread_is_read_once_however_many_ask_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[Frame, ...]] = []
    table = stack_activity._read
    monkeypatch.setattr(stack_activity, "_read", lambda frames: read.append(frames) or table(frames))
    story = Story()
    story.tell(Iteration(None, 3, 0, "iteration 3"))

    # when: the state, the straggler's and the hang's detector see a job that hangs for a minute
    waits = ("<module> train.py:1", "all_reduce torch/distributed/distributed_c10d.py:3173")
    story.still(60.0, {0: waits, 1: ("<module> train.py:1", "f a.py:1")})

    assert story.hang().ranks == (1,)
    assert len({id(frames) for frames in read}) == len(read) == 2 * 30


def test_each_row_of_the_table_of_frames_can_be_read() -> None:
    rows = [*stack_activity._WAITS, *stack_activity._CONTEXTS]

    assert len(rows) > 50 and all(Activity(word) and (part or functions) for word, part, functions in rows)
    assert all(
        part and not functions for _, part, functions in (*stack_activity._ROLES, *stack_activity._IDLE)
    )
