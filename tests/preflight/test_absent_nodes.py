"""Which nodes did not come to node 0, by number, and by name where the engine tells it."""

from __future__ import annotations

from diag.preflight.met_nodes import absent
from diag.preflight.plan import make_plan
from diag.preflight.rendezvous_probe import Met

STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[1-4]", "SLURM_STEP_NUM_NODES": "4",
    "SLURM_NNODES": "4", "SLURM_NODEID": "0", "MASTER_ADDR": "gpu1",
}  # fmt: skip
TORCHRUN = "torchrun --nnodes 20 --node_rank 0 --master_addr a t.py"


def met(rank: int | None) -> Met:
    return Met(rank, 4, f"gpu{rank}", "10.0.0.9", "10.0.0.9")


def said(words: str, env: dict[str, str], *came: int | None) -> str:
    return absent(make_plan(words.split(), env, 60), [met(rank) for rank in came])


def test_absent_nodes_are_named_as_slurm_names_them() -> None:
    assert said("python t.py", STEP, 2) == ": node 1 (gpu2), node 3 (gpu4)"


def test_absent_nodes_have_numbers_only_where_nothing_names_them() -> None:
    assert said("torchrun --nnodes 3 --node_rank 0 --master_addr a t.py", {}, 1) == ": node 2"


def test_many_absent_nodes_are_counted() -> None:
    assert (
        said(TORCHRUN, {}, 5)
        == ": node 1, node 2, node 3, node 4, node 6, node 7, node 8, node 9 and 10 more"
    )


def test_nothing_is_said_where_a_rank_is_not_known_or_two_have_the_same() -> None:
    c10d = "torchrun --nnodes 3 --rdzv_backend c10d --rdzv_endpoint a t.py"

    assert said(c10d, {}, None) == ""
    assert said(TORCHRUN, {}, 1, None) == ""
    assert said(TORCHRUN, {}, 1, 1) == ""
