"""The real `megatron rlhf` of ms-swift on the CPU device layer."""

import re
from pathlib import Path

import pytest

from .conftest import Start, need

pytestmark = pytest.mark.real_job


def test_a_healthy_real_job_trains_and_saves(start: Start, tmp_path: Path) -> None:
    need("torch", "megatron.core", "swift")
    out = tmp_path / "out"

    run = start(
        "diag_job.megatron", "--iters", "2", "--assets", str(tmp_path / "assets"), "--output-dir", str(out)
    )

    assert run.end() == 0, run.output
    assert re.search(
        r"^run sh: `\S+ -m torch\.distributed\.run --nproc_per_node 2 \S+/swift/cli/_megatron/rlhf\.py",
        run.output,
    )
    assert "[INFO:swift] The training of Epoch 0 starts..." in run.output
    assert re.search(r"'loss': 0\.69314\d+, .*'iteration': '1/2'", run.output)
    saved = re.search(r"Successfully saved Megatron model weights in `(\S+)`", run.output)
    assert saved is not None
    assert Path(saved[1], "iter_0000002", ".metadata").exists()
