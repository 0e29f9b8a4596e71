"""What a hub says is taken as it is meant or refused; the table and the small drawings."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from diag.cli.main import main
from diag.cli.tui import rendering, spark
from diag.cli.tui.line import plain
from diag.cli.tui.once import picture
from diag.cli.tui.state import State
from diag.cli.tui.table import ORDERS, Table
from diag.outputs.terminal.tree_text import class_lines
from diag.outputs.view.classes import stack_classes
from diag.state.stack_activity import format_frame
from tests.top.screens import CAPTURES, document, recorded

HANG = "gpu-drills/data-hang-TP2-PP2-EP2"
NAMES = [HANG, "gpu-drills/slow-rank", "h200-live/healthy", "h200-live/rank-killed"]


def state_of(told: dict[str, Any]) -> State:
    state = State()
    state.take_document(told)
    return state


def all_of(state: State, width: int = 80) -> str:
    """Everything that is drawn."""
    lines = [*rendering.head_lines(state, "LIVE", "", width), *rendering.findings_lines(state, width, "zh"),
             *rendering.findings_pane(state, 0, width, 12, "en"), *rendering.stacks_lines(state, width),
             *spark.timeline_lines(state, width), *spark.timeline_lines(state, width, spark.PLAIN, 6)]  # fmt: skip
    for order in ORDERS:
        table = Table(state, width, order, wanted="")
        lines += [table.head(), *(table.row(index) for index in range(len(table.rows)))]
    for row in state.rows.values():
        lines += rendering.rank_lines(row, state, None, "", width)
    return "\n".join(map(plain, lines)) + picture(state, "LIVE", width=width, colour=False, lang="en")


@pytest.mark.parametrize("name", NAMES)
def test_merged_stacks_read_as_where_they_were_made(name: str) -> None:
    state = state_of(document(name))
    made = stack_classes(recorded(name)._view.engine)

    assert [one.title() for one in state.stacks] == [one.title() for one in made]
    assert [list(map(format_frame, one.frames)) for one in state.stacks] == [
        list(map(format_frame, one.frames)) for one in made
    ]
    assert class_lines(state.stacks, 100, 10) == class_lines(made, 100, 10)


@pytest.mark.parametrize("name", NAMES)
def test_broken_documents_are_refused_or_drawn_but_nothing_else(name: str) -> None:
    whole = document(name)
    chance = random.Random(7)
    odd = [None, -1, 1e308, "x", [], {}, [1], {"a": 1}, True, float("nan"), ["\x1b[2J"], 10**400]
    refused = 0
    for _ in range(150):
        broken = copy.deepcopy(whole)
        for _ in range(chance.randint(1, 4)):
            _break(broken, chance, odd)
        state = state_of(whole)
        for part, value in broken.items():
            try:
                state.take(part, {"whole": True, "rows": value} if part == "ranks" else value)
            except ValueError:
                refused += 1
        assert "\x1b" not in all_of(state)
    assert refused < 150


def _break(node: Any, chance: random.Random, odd: list[Any]) -> None:
    """One value somewhere below becomes another."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = chance.choice(keys)
        if not isinstance(node[key], (dict, list)) or not node[key] or chance.random() < 0.2:
            node[key] = chance.choice(odd)
            return
        node = node[key]


def test_no_state_is_no_state() -> None:
    for wrong in (None, [], {}, {"schema": "diag.report/1"}, {"schema": "diag.state/1", "ranks": {}}):
        with pytest.raises(ValueError):
            State().take_document(wrong)


def test_rows_that_changed_replace_those_before_and_the_document_follows() -> None:
    state = state_of(document(HANG))
    row = {**document(HANG)["ranks"][1], "state": "dead"}

    state.take("ranks", {"whole": False, "rows": [row]})

    assert [one.state for one in state.rows.values()] == ["stalled", "dead", "delaying", "stalled"]
    assert [one["state"] for one in state.raw["ranks"]] == ["stalled", "dead", "delaying", "stalled"]
    state.take("ranks", {"whole": True, "rows": [row]})
    assert list(state.rows) == [1] and json.dumps(state.raw["ranks"]) == json.dumps([row])


# --- the table


def many(count: int) -> State:
    told = document(HANG)
    row = told["ranks"][0]
    told["ranks"] = [
        {**row, "rank": rank, "host": f"node-{rank // 8}", "state": "running", "cpu_ratio": rank / 10}
        for rank in range(count)
    ]
    return state_of(told)


def shown(table: Table) -> list[int]:
    return [row.rank for row in table.rows]


def test_culprits_come_first_and_then_the_dead_and_those_that_wait() -> None:
    assert shown(Table(state_of(document(HANG)), 80)) == [2, 0, 1, 3]
    killed = state_of(document("h200-live/rank-killed"))
    assert shown(Table(killed, 80))[0] in killed.culprits()


def test_filter_takes_words_and_ranges_of_ranks() -> None:
    state = many(64)

    assert shown(Table(state, 80, wanted="8-9,17")) == [8, 9, 17]
    assert shown(Table(state, 80, wanted="node-3 running")) == list(range(24, 32))
    assert shown(Table(state, 80, wanted="node-3 25")) == [25]
    assert shown(Table(state, 80, wanted="nowhere")) == []


def test_unknown_values_come_last_however_it_is_sorted() -> None:
    told = document(HANG)
    told["ranks"][0]["cpu_ratio"] = None
    state = state_of(told)

    assert shown(Table(state, 80, "CPU"))[-1] == 0
    assert shown(Table(state, 80, "CPU", backwards=True))[-1] == 0


@pytest.mark.parametrize("width", [20, 40, 80, 132, 250])
def test_table_keeps_rank_and_state_and_drops_the_rest_from_the_least(width: int) -> None:
    state = many(16)
    table = Table(state, width)
    head = plain(table.head())

    assert len(head) <= width and "rank" in head and "state" in head
    assert ("host" in head) is (width >= 80)  # there are two
    assert ("pid" in head) is (width >= 132)
    assert "host" not in plain(Table(state_of(document(HANG)), 250).head())  # there is one


# --- plain text


def test_picture_has_head_finding_table_stacks_time_line_and_what_to_type() -> None:
    text = picture(state_of(document(HANG)), "RECORDED", width=100, colour=False, lang="en")

    parts = ["HELD-UP phase steady", "WARNING held-up (data_loading)", "  do: Look at what the worker reads", "\nRanks:\n",
             "\n !   2 delaying", "\nStacks:\n", "\nTime line:\n", "\nnext: ls -l /proc/3053/fd"]  # fmt: skip
    positions = [text.find(part) for part in parts]
    assert positions == sorted(positions) and -1 not in positions, positions
    assert text.isascii() and max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(("name", "code"), [(HANG, 10), ("h200-live/healthy", 0)])
def test_command_without_a_terminal_prints_it_with_the_exit_code_of_a_dump(
    name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(CAPTURES / name)]) == code
    text = capsys.readouterr().out
    assert text.startswith("HELD-UP" if code else "FINISHED") and "RECORDED" in text

    assert main(["top", str(CAPTURES / name), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["head"]["recorded"] == str(CAPTURES / name)


def test_no_hub_there_is_an_error_and_no_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--endpoint", "http://127.0.0.1:1"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_picture_of_many_ranks_is_short() -> None:
    text = picture(many(1024), "LIVE", width=100, colour=False, lang="en")

    assert "and 984 more ranks" in text and len(text.splitlines()) < 180
