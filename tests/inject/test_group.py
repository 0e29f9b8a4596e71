"""What the hook says of the process group: of whom, when, and that nothing is done before."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.inject.targets import hooked_env, plain_env, run_python
from tests.inject.test_hook import fake_torch, python_with_torch

# A group in torch's words. `new` is the world's size by the time of the second call.
GROUP = """
import os
_size = 0
class _Tcp:
    host, port = "node-0", 29500
class _Prefix:
    underlying_store = _Tcp()
def init_process_group(rank=0, world_size=1):
    global _rank, _size
    _rank, _size = rank, world_size
    return "made"
def destroy_process_group(): pass
def get_rank(): return _rank
def get_world_size(): return _size
def _get_default_store(): return _Prefix()
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    folder = tmp_path / "users"
    folder.mkdir()
    fake_torch(folder)
    (folder / "torch" / "distributed" / "distributed_c10d.py").write_text(GROUP)
    return folder


def run(users: Path, code: str, rank: int | None = None, **env: str) -> list[dict[str, Any]]:
    """What the hook said, as the code sees it when it prints `said()`."""
    look = (
        "import glob, os, sys\ndef said():\n"
        f"    paths = sorted(glob.glob({str(users.parent)!r} + '/run/hook.*.json'))\n"
        "    print([open(path).read() for path in paths], flush=True)\n"
    )
    done = run_python(look + code, hooked_env(users.parent / "run", rank, users, **env))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return [json.loads(text) for line in done.stdout.splitlines() for text in ast.literal_eval(line)]


def test_process_without_rank_says_which_rank_of_which_group_it_is_once_it_has_joined(users: Path) -> None:
    (said,) = run(
        users,
        "import torch.distributed as dist\nsaid()\n"
        "os.environ['LOCAL_RANK'] = '1'\nassert dist.init_process_group(2, 3) == 'made'\nsaid()\n",
    )

    group = said["group"]
    assert (said["rank"], group["rank"], group["world"], group["number"]) == (2, 2, 3, 1)
    assert (group["store"], group["thread"], group["env"]) == ("tcp://node-0:29500", [], {"LOCAL_RANK": "1"})
    assert said["signal"] == 50  # and it can be read by signal from now on


def test_process_that_only_imports_torch_is_left_as_it_is(users: Path) -> None:
    code = "import torch.distributed, signal\nassert signal.getsignal(50) == signal.SIG_DFL\nsaid()"
    assert run(users, code) == []
    assert list((users.parent / "run").iterdir()) == []


def test_word_of_the_group_stands_beside_that_of_the_environment(users: Path) -> None:
    (said,) = run(users, "import torch.distributed as d\nd.init_process_group(1, 2)\nsaid()", rank=0)

    assert (said["rank"], said["group"]["rank"], said["group"]["world"]) == (0, 1, 2)


def test_second_group_of_a_process_has_the_next_number(users: Path) -> None:
    code = "import torch.distributed as d\nd.init_process_group(2, 3); d.destroy_process_group(); d.init_process_group(1, 2)\nsaid()"
    (said,) = run(users, code)

    assert (said["group"]["rank"], said["group"]["world"], said["group"]["number"]) == (1, 2, 2)


def test_forked_children_that_join_say_so_each_for_itself(users: Path) -> None:
    code = (
        "import torch.distributed as d\npids = []\nr, w = os.pipe()\n"
        "for rank in range(2):\n"
        "    if (pid := os.fork()) == 0:\n"
        "        d.init_process_group(rank, 2); os.write(w, b'.'); os.read(0, 1); os._exit(0)\n"
        "    pids.append(pid)\n"
        "os.read(r, 1), os.read(r, 1)\nsaid()\n"
        "import signal; [os.kill(pid, signal.SIGKILL) for pid in pids]"
    )
    said = run(users, code)

    assert sorted(one["group"]["rank"] for one in said) == [0, 1]
    assert len({one["pid"] for one in said}) == 2


def test_thread_that_joined_is_named(users: Path) -> None:
    code = (
        "import threading, torch.distributed as d\n"
        "thread = threading.Thread(target=d.init_process_group); thread.start(); thread.join()\nsaid()"
    )
    (said,) = run(users, code)

    native, ident = said["group"]["thread"]
    assert native != said["pid"] and ident > 0


@pytest.mark.parametrize(
    "broken", ["def get_rank(): 1 / 0", "del get_rank", "def get_world_size(): return 'x'"]
)
def test_group_that_cannot_be_read_is_no_news_to_the_job(users: Path, broken: str) -> None:
    path = users / "torch" / "distributed" / "distributed_c10d.py"
    path.write_text(f"{GROUP}\n{broken}\n")

    assert run(users, "import torch.distributed as d\nassert d.init_process_group() == 'made'\nsaid()") == []


def test_failed_init_is_raised_as_it_is_and_says_nothing(users: Path) -> None:
    path = users / "torch" / "distributed" / "distributed_c10d.py"
    path.write_text(f"{GROUP}\ndef init_process_group(): raise ValueError('no store')\n")
    code = "import torch.distributed as d\ntry: d.init_process_group()\nexcept ValueError: said()"

    assert run(users, code) == []


def test_real_torch_says_where_its_group_meets(tmp_path: Path) -> None:
    code = (
        "import glob, os, torch.distributed as dist\n"
        "dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)\n"
        "print(open(glob.glob(os.environ['DIAG_RUN_DIR'] + '/hook.*.json')[0]).read())\n"
    )
    env = {**hooked_env(tmp_path, None), "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_python(code, env, python=python_with_torch())

    group = json.loads(done.stdout)["group"]
    assert (group["rank"], group["world"]) == (0, 1)
    assert group["store"].startswith("tcp://127.0.0.1:")
    assert plain_env().keys().isdisjoint({"DIAG_RUN_DIR"}) and not os.listdir(tmp_path / "stacks")


def test_worker_of_rpc_without_a_process_group_says_which_it_is(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (make test installs it)")
    code = (
        "import glob, os\nimport torch.distributed.rpc as rpc\n"
        f"rpc.init_rpc('ps', rank=0, world_size=1, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method='file://{tmp_path}/meet'))\n"
        f"print(open(glob.glob('{tmp_path}/hook.*.json')[0]).read()); rpc.shutdown()"
    )
    done = run_python(code, hooked_env(tmp_path, None))

    said = json.loads(done.stdout)
    assert (done.returncode, said["group"]["rank"], said["group"]["world"]) == (0, 0, 1), done.stderr
    assert said["group"]["store"] == f"file://{tmp_path}/meet"


def test_worker_of_rpc_that_has_a_process_group_is_that_rank_of_it(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch (make test installs it)")
    code = (
        "import glob, os\nimport torch.distributed as dist, torch.distributed.rpc as rpc\n"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path}/group', rank=0, world_size=1)\n"
        f"rpc.init_rpc('ps', rank=0, world_size=1, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method='file://{tmp_path}/meet'))\n"
        f"print(open(glob.glob('{tmp_path}/hook.*.json')[0]).read()); rpc.shutdown()"
    )
    done = run_python(code, hooked_env(tmp_path, None))

    group = json.loads(done.stdout)["group"]
    assert (group["store"], group["number"]) == (f"file://{tmp_path}/group", 1)
