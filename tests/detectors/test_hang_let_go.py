"""Ranks that wait to receive from each other: a send of which nothing was kept, and loops with different numbers of rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations import Exchange
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read
from tests.detectors.test_hang_variables import held
from tests.facts import stack, tree
from tests.programs import line_of

RECV = "recv torch/distributed/distributed_c10d.py:2799"
TEXT = """
def publish(weights):
    dist.isend(weights, dst={peer})


def trainer(model):
    for version in range(200):
        {publishes}(model)
        recv(score, src=1)  # trainer


def evaluator(model):
    while True:
        answer = dist.isend(score, dst=0)
        recv(model, src=0)  # evaluator


def stages(outs, rank):
    if rank > 0:
        for part in range(MICRO):
            recv(part, rank - 1)  # forward
    for part in range(len(outs)):
        recv(part, rank + 1)  # backward


def feeds(x, conf):
    outs = []
    for part in x.split(conf.micro):
        outs.append(part)
    for out in outs:
        recv(out, 1)  # feeds


def relays(conf):
    for part in range(conf.n_micro):
        recv(part, 0)  # relays


run()  # top
"""


def told(
    path: Path,
    functions: Mapping[int, tuple[str, str]],
    values: Mapping[int, dict[str, str]],
    *,
    peer: int = 1,
    publishes: str = "publish",
) -> Finding:
    """Both receive from the other: `functions` is where, its function and line."""
    text = TEXT.format(peer=peer, publishes=publishes)
    (path / "train.py").write_text(text)
    script = path / "train.py"
    stacks: dict[int, Sequence[str]] = {
        rank: [f"<module> {script}:{line_of(text, 'top')}", f"{name} {script}:{line_of(text, mark)}", RECV]
        for rank, (name, mark) in functions.items()
    }
    story = steady(len(stacks))
    for at in range(30):
        for rank, lines in stacks.items():
            sample = stack(rank, story.now, lines)
            main = replace(sample.threads[0], exchange=Exchange(False, 1 - rank))
            story.tell(replace(tree(rank, story.now), switches=100), replace(sample, threads=(main,)))
            if at == 10:
                read(story, script, rank, lines)
                held(story, rank, lines, {functions[rank][0]: values.get(rank, {})})
        story.wait(2.0)
    return story.the("hang")


BOTH = {0: ("trainer", "trainer"), 1: ("evaluator", "evaluator")}


def test_rank_that_keeps_nothing_of_a_send_is_to_blame(tmp_path: Path) -> None:
    hang = told(tmp_path, BOTH, {})

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == ("message_let_go", (0,), (1,))
    assert "nothing keeps what `dist.isend(weights, dst=1)` (" in hang.summary
    assert "has to be kept" in hang.advice and "isend before recv" not in hang.advice


@pytest.mark.parametrize(
    ("peer", "publishes"), [(7, "publish"), (1, "other")], ids=["to another rank", "of a function not in use"]
)
def test_send_that_is_not_this_ranks_to_that_one_is_none(tmp_path: Path, peer: int, publishes: str) -> None:
    hang = told(tmp_path, BOTH, {}, peer=peer, publishes=publishes)

    assert (hang.cause, hang.ranks) == ("messages_do_not_match", ())


def test_loops_that_count_messages_differently_are_named_with_both_numbers(tmp_path: Path) -> None:
    functions = {0: ("stages", "backward"), 1: ("stages", "forward")}
    hang = told(tmp_path, functions, {0: {"outs": "<list of 3 Tensor>", "MICRO": "4"}, 1: {"MICRO": "4"}})

    assert "`for part in range(len(outs)):` (" in hang.summary and "has 3 rounds on rank 0" in hang.summary
    assert "`for part in range(MICRO):` (" in hang.summary and "has 4 rounds on rank 1" in hang.summary


@pytest.mark.parametrize("outs", ["<list of 4 Tensor>", "<Outputs>"])
def test_loops_of_as_many_rounds_or_unknown_ones_are_not_compared(tmp_path: Path, outs: str) -> None:
    functions = {0: ("stages", "backward"), 1: ("stages", "forward")}
    hang = told(tmp_path, functions, {0: {"outs": outs, "MICRO": "4"}, 1: {"MICRO": "4"}})

    assert "rounds" not in hang.summary


UNKNOWN = {0: ("feeds", "feeds"), 1: ("relays", "relays")}


def test_loop_that_is_in_a_later_round_than_the_other_has_is_named_where_its_number_is_not_known(
    tmp_path: Path,
) -> None:
    loader = {"loader.batch_size": "32", "loader.drop_last": "False"}
    values = {0: {"outs": "[<Tensor>]"} | loader, 1: {"part": "1", "conf": "<Conf micro=8>"}}
    hang = told(tmp_path, UNKNOWN, values)

    assert "where outs is filled in `for part in x.split(conf.micro):` (" in hang.summary
    assert "has 1 round on rank 0" in hang.summary
    assert "rank 1 is in round 2 of `for part in range(conf.n_micro):` (" in hang.summary
    assert "`loader.drop_last` was False: its last batch may have fewer than 32 rows" in hang.summary


def test_loop_that_has_come_no_further_than_the_other_has_rounds_is_not_compared(tmp_path: Path) -> None:
    hang = told(tmp_path, UNKNOWN, {0: {"outs": "[<Tensor>, <Tensor>]"}, 1: {"part": "1"}})

    assert "round" not in hang.summary
