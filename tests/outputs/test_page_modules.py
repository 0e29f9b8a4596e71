"""What modules of the page compute, without a browser: a sentence in parts, who is unlike the others, where ranks stand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

WEB = Path(__file__).parents[2] / "diag/outputs/web"
_PAGE = """
import * as page from "%s";
const asked = JSON.parse(await new Response(process.stdin).text());
console.log(JSON.stringify(await (%s)(page, asked)));
"""

SUMMARY = (
    "rank 2 has waited for a batch from DataLoader worker pid 3053, which is blocked in _read_shard (/opt/job/in_worker.py:67) "
    "for 22 s after iteration 5/1000000; ranks 0-1 wait in synchronize (from P2PCommunicator._communicate_shapes, "
    "/opt/p2p.py:263), rank 3 waits in Event.synchronize (from Dispatcher.sync, /opt/moe.py:930) (4 of 4 ranks seen)"
)
CHINESE = (
    "rank 2 在等 DataLoader worker（pid 3053）给数据，后者阻塞在 _read_shard（/opt/job/in_worker.py:67），已 22 秒，"
    "在 iteration 5/1000000 之后；rank 0-1 在 synchronize（由 P2PCommunicator 调用，/opt/p2p.py:263）里等待，"
    "rank 3 在 Event.synchronize（由 Dispatcher.sync 调用，/opt/moe.py:930）里等待（看到 4/4 个 rank）"
)


def told(module: str, function: str, asked: Any) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    script = _PAGE % ((WEB / module).as_uri(), function)
    done = subprocess.run(
        [node, "--input-type=module", "-e", script],
        input=json.dumps(asked), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def parts(summary: str, *, standing: bool = True, waiting: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = told(
        "telling.js",
        "(page, [text, of]) => page.told(text, of)",
        [summary, {"standing": standing, "waiting": waiting}],
    )
    return found


@pytest.mark.parametrize(
    ("summary", "claim", "span", "after", "first"),
    [
        (
            SUMMARY,
            SUMMARY[: SUMMARY.index(" for 22 s")],
            "22 s",
            "after iteration 5/1000000",
            "ranks 0-1 wait in",
        ),
        (CHINESE, CHINESE[: CHINESE.index("，已 22")], "22 秒", "在 iteration 5/1000000 之后", "rank 0-1 在"),
    ],
)
def test_sentence_of_a_standstill_in_parts(
    summary: str, claim: str, span: str, after: str, first: str
) -> None:
    found = parts(summary)

    assert (found["claim"], found["span"], found["after"]) == (claim, span, after)
    assert len(found["waits"]) == 2 and found["waits"][0].startswith(first) and found["seen"]
    assert found["more"] == [] and found["why"] == ""


def test_reason_after_the_time_is_a_part_of_its_own() -> None:
    found = parts(
        "rank 1 has been between two calls of Ray for 36 s: the actor Trainer (pid 6264) runs no method: its last call has "
        "returned; rank 0 waits in all_reduce (from Trainer.fit, ddp.py:37) (2 of 2 ranks seen)"
    )

    assert (found["claim"], found["span"]) == ("rank 1 has been between two calls of Ray", "36 s")
    assert found["why"] == "the actor Trainer (pid 6264) runs no method: its last call has returned"


@pytest.mark.parametrize(
    "summary",
    [
        'rank 0 printed: "a; b for 5 s; c"',
        'rank 0 printed: "cut (off; and so on',
        "the loss is nan at iteration 11, and in 30 lines in all",
        "rank 3 has not launched all_reduce, in the one moment captured, after iteration 3",
    ],
)
def test_what_is_not_put_together_so_stays_whole(summary: str) -> None:
    assert parts(summary)["claim"] == summary
    assert parts(summary, standing=False, waiting=False)["claim"] == summary


@pytest.mark.parametrize("summary", [SUMMARY, CHINESE, 'rank 1 ended; it printed: "x; y"; no rule knows it'])
def test_no_word_of_a_sentence_is_lost(summary: str) -> None:
    found = parts(summary)
    kept = " ".join(
        [
            *(found[name] for name in ("claim", "span", "after", "why", "seen")),
            *found["waits"],
            *found["more"],
        ]
    )

    for word in set(re.split(r"[；，;,\s()（）]+", summary)) - {"for", "已"}:
        assert word in kept, word


def rows(change: dict[int, dict[str, Any]], nodes: int = 16) -> list[dict[str, Any]]:
    return [
        {
            "name": f"node {node}",
            "rows": [
                {
                    "rank": 8 * node + local, "local_rank": local, "cpu_ratio": 1.0 + 0.01 * ((node + local) % 5),
                    "gpu": {"utilization_ratio": 0.9 + 0.01 * (local % 3)}, **change.get(8 * node + local, {}),
                }
                for local in range(8)
            ],
        }
        for node in range(nodes)
    ]  # fmt: skip


def odd(nodes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    found = told(
        "metrics.js",
        "(page, nodes) => page.metricsOf(nodes.flatMap((one) => one.rows)).flatMap((metric) => page.oddOnes(nodes, metric, 0))"
        ".map((one) => [one.name, one.metric.key])",
        nodes,
    )
    return [tuple(one) for one in found]


def test_nobody_is_odd_where_all_are_about_alike() -> None:
    assert odd(rows({})) == []


def test_node_that_is_slow_as_a_whole_is_told_as_a_node() -> None:
    slow = {"gpu": {"utilization_ratio": 0.2}}
    assert odd(rows(dict.fromkeys(range(40, 48), slow))) == [("node 5", "util")]


def test_place_that_is_odd_in_all_nodes_is_told_as_a_place() -> None:
    slow = {"gpu": {"utilization_ratio": 0.2}}
    assert odd(rows(dict.fromkeys(range(3, 128, 8), slow))) == [("local rank 3", "util")]


def test_rank_alone_is_told_as_a_rank_and_one_that_ended_is_not_compared() -> None:
    assert odd(rows({57: {"cpu_ratio": 3.0}})) == [("rank 57", "cpu")]
    assert odd(rows({57: {"cpu_ratio": 3.0, "exit": {"code": 0}}})) == []


def test_many_that_differ_are_no_exception() -> None:
    assert odd(rows({rank: {"cpu_ratio": 3.0} for rank in (3, 17, 33, 57, 90)})) == []


@pytest.mark.parametrize("count", [129, 1024, 4096, 16384])
@pytest.mark.parametrize("width", [340, 1380])
def test_all_ranks_have_a_place_of_their_own_on_one_screen(count: int, width: int) -> None:
    nodes = [
        {"host": f"n{first}", "node": first // 8,
         "rows": [{"rank": rank, "local_rank": rank % 8} for rank in range(first, min(first + 8, count))]}
        for first in range(0, count, 8)
    ]  # fmt: skip
    size = told(
        "heatlayout.js",
        "(page, [nodes, width]) => { const found = page.layoutOf(nodes, width, 400);"
        " const corners = [...found.place].map(([rank, place]) =>"
        " [rank, ...page.cornerOf(found, place), ...page.placeAt(found, ...page.cornerOf(found, place))]);"
        " return {height: found.height, cell: found.cell, corners, place: [...found.place]}; }",
        [nodes, width],
    )

    assert len({(x, y) for _, x, y, *_ in size["corners"]}) == count
    assert [[column, row] for *_, column, row in size["corners"]] == [place for _, place in size["place"]]
    assert max(x for _, x, *_ in size["corners"]) + size["cell"] <= width
    assert size["height"] <= 400 or (width, count) == (340, 16384), "a phone scrolls for that many"


def test_ranks_of_one_large_node_and_of_nodes_without_places_stand_apart() -> None:
    nodes = [
        {"host": "big", "node": 0, "rows": [{"rank": rank, "local_rank": rank} for rank in range(200)]},
        {"host": "odd", "node": 1, "rows": [{"rank": 200 + rank, "local_rank": 0} for rank in range(3)]},
        {"host": "bare", "node": None, "rows": [{"rank": 300, "local_rank": None}]},
    ]
    places = told(
        "heatlayout.js",
        "(page, nodes) => [...page.layoutOf(nodes, 900, 400).place.values()].map(String)",
        nodes,
    )

    assert len(set(places)) == 204


def test_flame_of_collapsed_stacks_zooms_and_tells_the_share_of_what_matches() -> None:
    lines = "main [0-3];step [0-3];wait [0-1] 2\nmain [0-3];step [0-3];read [2] 1\nmain [0-3];step [0-3];wait [3];wait [3] 1\n"
    found = told(
        "flametree.js",
        "(page, text) => { const root = page.treeOfLines(text);"
        " const read = root.children[0].children[0].children[1];"
        " return {weight: root.weight, ranks: root.children[0].ranks, "
        " seen: page.seenOf(read, 100).map((one) => [one.box.name, one.width]),"
        " share: page.shareOf(root, (box) => box.name === 'wait')}; }",
        lines,
    )

    assert (found["weight"], found["ranks"], found["share"]) == (4, [0, 1, 2, 3], 0.75)
    assert found["seen"] == [["all", 100], ["main", 100], ["step", 100], ["read", 100]]


@pytest.mark.parametrize(
    ("names", "values", "limit", "quiet"),
    [
        (["shm_bytes"], [0, 327680], 549755813888, True),
        (["memory_bytes"], [1 << 30, 300 << 30], 549755813888, False),
        (["rdma_bytes_per_second"], [0, 0], None, True),
        (["rdma_bytes_per_second"], [0, 5], None, False),
        (["gpu_utilization_ratio"], [0, 0], None, False),
    ],
)
def test_chart_that_shows_nothing_is_quiet(
    names: list[str], values: list[float], limit: int | None, quiet: bool
) -> None:
    chart = {"names": names, "limit": limit, "lines": [{"values": values}]}

    assert told("series.js", "(page, chart) => page.isQuiet(chart)", chart) is quiet


def test_summary_of_a_run_has_a_row_for_what_is_known_and_none_for_the_rest() -> None:
    job = {
        "returncode": 0, "ended_at": 1100.0, "iteration": 30, "total_iterations": 30,
        "steps": {"count": 29, "seconds_median": 0.7, "seconds_p95": 0.77, "slowest": [{"iteration": 4, "seconds": 2.0}]},
    }  # fmt: skip
    function = "(page, of) => page.rowsOf(of)"
    found = dict(
        told(
            "runrows.js", function, {"job": job, "timeline": None, "rows": [], "head": {"started_at": 1000.0}}
        )
    )
    bare = dict(
        told(
            "runrows.js",
            function,
            {"job": {**job, "steps": None, "iteration": None}, "timeline": None, "rows": [], "head": {}},
        )
    )

    assert found["a step"] == "median 0.7 s, 95th percentile 0.77 s, of 29 steps"
    assert found["slowest"] == "iteration 4: 2 s" and found["lasted"].startswith("1 min 40 s")
    assert bare == {"exit code": "0"}
