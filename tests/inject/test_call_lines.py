"""The lines that made each call, as the hook's handlers of torch's worker server give them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from diag.model import Record
from diag.model.observations import CallHistory
from diag.sources.collectives import flight_recorder
from tests.inject.targets import hooked_env
from tests.inject.test_hook import python_with_torch

PROGRAM = """
import sys, threading
import torch, torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
if not hasattr(torch._C._distributed_c10d, "_register_handler"):
    sys.exit(77)

def reduce():
    dist.all_reduce(torch.ones(3))

for _ in range(3):
    reduce()
dist.barrier()
print("ready", flush=True)
for line in sys.stdin:
    print("torch._inductor" in sys.modules, "_inductor" in vars(torch), flush=True)
    import torch._inductor.config
    assert torch._inductor.config is sys.modules["torch._inductor.config"]
    print("imported", flush=True)
"""


def called(pid: int, run_dir: Path) -> list[Any]:
    payload = flight_recorder.look_with_lines(pid, run_dir, 20.0)
    assert payload is not None
    _, history = flight_recorder.parse(
        Record(flight_recorder.SOURCE, json.loads(json.dumps(payload)), rank=0)
    )
    assert isinstance(history, CallHistory)
    (group,) = history.groups
    return [
        (group.kinds[kind].op, [one.line for one in group.stacks[kind] if one.file.endswith("job.py")])
        for _, kind in group.calls
    ]


def test_real_torch_tells_the_lines_of_calls_and_imports_no_compiler_for_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (tmp_path / "job.py").write_text(PROGRAM)
    with subprocess.Popen(
        [python_with_torch(), str(tmp_path / "job.py")], env=hooked_env(run_dir), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as rank:  # fmt: skip
        assert rank.stdin is not None and rank.stdout is not None
        if rank.stdout.readline() == "":
            assert rank.wait(20) == 77
            pytest.skip("this torch takes no handlers")
        # given a rank that has made calls at two lines
        made = [("all_reduce", [13, 10])] * 3 + [("barrier", [14])]
        # when it is asked
        assert called(rank.pid, run_dir) == made
        rank.stdin.write("\n")
        rank.stdin.flush()
        # then nothing was imported, and is still there where the program asks for it
        assert [rank.stdout.readline().strip() for _ in range(2)] == ["False False", "imported"]
        assert called(rank.pid, run_dir) == made
        # and it ends as it would without
        _, stderr = rank.communicate("")
        assert (rank.returncode, stderr) == (0, "")


def test_a_rank_whose_interpreter_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody listens, or whoever has the GIL does not give it."""
    assert flight_recorder.look_with_lines(1, tmp_path, 0.2) is None
