"""Which line of a stack is the program's own: by the paths that interpreters, pip and py-spy give."""

from __future__ import annotations

import sysconfig

import pytest

from diag.engine.importers.pyspy_text import threads_of_text
from diag.state.own_code import is_own_file, own_line
from diag.state.stack_activity import Activity, read_stack
from tests.core.test_stacks import main_of, thread
from tests.facts import frames

PACKAGES = "/opt/venv/lib/python3.12/site-packages"
MAIN = ("<module> /srv/job/train.py:300", "main /srv/job/train.py:250")
RECEIVE = (
    "Connection.recv /usr/lib/python3.12/multiprocessing/connection.py:250",
    "Connection._recv /usr/lib/python3.12/multiprocessing/connection.py:395",
)


def own_of(*stack: str) -> str:
    found = own_line(frames(*stack), len(stack) - 1)
    return "" if found is None else f"{found.function}:{found.line}"


@pytest.mark.parametrize(
    "path",
    [
        "/srv/job/train.py",
        "/home/me/Megatron-LM/megatron/core/pipeline_parallel/schedules.py",
        "/opt/swift/swift/cli/sft.py",  # an editable install: people change it
        "/usr/local/bin/train.py",
        "/tmp/ipykernel_77/1234.py",
        "/srv/job/lib/data.py",
        "train.py",
    ],
)
def test_file_that_nobody_installed_is_the_programs_own(path: str) -> None:
    assert is_own_file(path)


@pytest.mark.parametrize(
    "path",
    [
        f"{PACKAGES}/torch/utils/data/dataloader.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "/root/.local/lib/python3.10/site-packages/requests/api.py",
        "/opt/conda/lib/python3.11/threading.py",
        "/root/.pyenv/versions/3.13.1/lib/python3.13t/ssl.py",
        "/usr/lib64/python3.9/lib-dynload/_bz2.py",
        "/opt/venv/bin/torchrun",
        "torchrun",
        "pandas/_libs/lib.pyx",
        "/io/pandas/_libs/lib.pyx",
        "<frozen importlib._bootstrap>",
        "threading.py",
        "multiprocessing/connection.py",
    ],
)
def test_file_of_a_package_or_of_python_is_not(path: str) -> None:
    assert not is_own_file(path)


@pytest.mark.parametrize("name", ["stdlib", "platstdlib", "purelib", "platlib"])
def test_folders_of_this_interpreter_are_known_by_their_paths(name: str) -> None:
    assert not is_own_file(f"{sysconfig.get_paths()[name]}/module.py")


def test_folder_of_an_unknown_package_is_not_called_the_programs_own() -> None:
    """py-spy's text has `myproject/data.py` and `requests/api.py` alike."""
    assert not is_own_file("myproject/data.py")


def test_nearest_own_line_is_the_one_that_called_the_library() -> None:
    assert own_of(*MAIN, "fetch /srv/job/data.py:41", *RECEIVE) == "fetch:41"


def test_line_of_the_programs_own_has_no_other() -> None:
    assert own_of(*MAIN, "fetch /srv/job/data.py:41") == ""


def test_own_line_between_two_libraries_is_found() -> None:
    callback = (
        f"fetch {PACKAGES}/torch/utils/data/_utils/fetch.py:54",
        "Shards.__getitem__ /srv/job/data.py:19",
    )

    assert own_of(*MAIN, *callback, *RECEIVE) == "Shards.__getitem__:19"


def test_stack_that_is_all_in_libraries_has_none() -> None:
    swift = (
        f"<module> {PACKAGES}/swift/cli/sft.py:20",
        f"train {PACKAGES}/swift/trainers/base.py:795",
        f"synchronize {PACKAGES}/torch/cuda/__init__.py:1162",
    )

    assert own_of("<module> /opt/venv/bin/swift:8", *swift) == ""


def test_module_that_starts_a_framework_is_not_named() -> None:
    framework = (
        f"fit {PACKAGES}/lightning/trainer.py:500",
        f"synchronize {PACKAGES}/torch/cuda/__init__.py:1162",
    )

    assert own_of("<module> /srv/job/train.py:300", *framework) == ""
    assert own_of(*MAIN, *framework) == "main:250"


def test_module_with_a_loop_of_its_own_is_named() -> None:
    reduce = (f"all_reduce {PACKAGES}/torch/distributed/distributed_c10d.py:3173",)

    assert own_of("<module> /srv/job/train.py:37", *reduce) == "<module>:37"
    assert own_of("<module> /srv/job/train.py:37", *RECEIVE) == "<module>:37"
    assert (
        own_of("<module> /srv/job/train.py:37", f"load {PACKAGES}/torch/hub.py:9", *RECEIVE) == "<module>:37"
    )


def test_fork_is_not_placed_at_the_line_that_forked_it() -> None:
    forked = (
        *MAIN,
        f"DataLoader.__iter__ {PACKAGES}/torch/utils/data/dataloader.py:500",
        "Popen._launch /usr/lib/python3.12/multiprocessing/popen_fork.py:71",
        "BaseProcess._bootstrap /usr/lib/python3.12/multiprocessing/process.py:314",
        "BaseProcess.run /usr/lib/python3.12/multiprocessing/process.py:108",
    )

    assert own_of(*forked, *RECEIVE) == ""
    assert own_of(*forked, "work /srv/job/pool.py:7", *RECEIVE) == "work:7"


def test_code_that_was_typed_is_own_and_code_that_was_made_is_whose_line_called_it() -> None:
    assert own_of("<module> <string>:1", "fetch <string>:3", *RECEIVE) == "fetch:3"
    notebook = (
        f"run_code {PACKAGES}/IPython/core/interactiveshell.py:3550",
        "<module> <ipython-input-3-9a>:2",
    )
    assert own_of("<module> /opt/venv/bin/jupyter:8", *notebook, *RECEIVE) == "<module>:2"
    made = (f"_call_impl {PACKAGES}/torch/fx/graph_module.py:800", "forward <eval_with_key>.5:7")
    assert own_of(*MAIN, *made, f"linear {PACKAGES}/torch/nn/functional.py:12") == "main:250"


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("data_hang_rank1", "main"),
        ("data_hang_rank0", "main"),
        ("skip_collective_rank1", None),
        ("mega4_rank0", None),
        ("mega4_rank2", None),
        ("data_hang_rank0_worker", None),
    ],
)
def test_own_line_of_a_real_rank(name: str, own: str | None) -> None:
    found = read_stack(main_of(name)).own

    assert (found.function if found else None) == own


TEXT = """Process 752: /usr/local/bin/python3 /app/train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 752 (idle): "MainThread"
    SSLSocket.read (ssl.py:1103)
    HTTPConnectionPool.urlopen (urllib3/connectionpool.py:787)
    get (requests/api.py:73)
    fetch (train.py:41)
    <module> (train.py:300)
"""


def test_text_of_py_spy_has_names_without_folders() -> None:
    text = threads_of_text(TEXT)
    assert text is not None
    lines = [f"{frame['name']} {frame['filename']}:{frame['line']}" for frame in text[1][0]["frames"]]

    assert own_of(*reversed(lines)) == "fetch:41"


def test_save_has_its_caller_and_not_what_it_calls() -> None:
    reading = read_stack(thread(*MAIN, "save_checkpoint /srv/job/train.py:30", "write /srv/job/disk.py:9"))

    assert reading.activity is Activity.CHECKPOINT
    assert reading.caller is not None and reading.caller.function == "main"
