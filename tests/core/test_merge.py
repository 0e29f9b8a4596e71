"""Many ranks' stacks as hashes, ranges and one tree: the same as looking at every rank, and safe to be told
by strangers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import pack_ranks
from diag.outputs.terminal.text import classes_text
from diag.outputs.view.classes import stack_classes
from diag.state.stack_digest import (
    Merged,
    Node,
    StackSite,
    _without,
    digest,
    format_spans,
    merge,
    parse_spans,
    picture,
    places_of,
    spans_of,
    standing_steps,
)
from tests.facts import ALL_REDUCE, DATA, SLEEP, WORKER, Story, process, stack, tree

RANKS = st.sets(st.integers(0, 300))
IDLE = (WORKER[0], "get multiprocessing/queues.py:113")


def job(size: int, outliers: dict[int, tuple[str, ...]], samples: int = 3) -> Story:
    """All wait in all_reduce but the outliers; nothing moves."""
    story = Story([], world=size)
    for _ in range(samples):
        for rank in range(size):
            story.tell(stack(rank, story.now, outliers.get(rank, ALL_REDUCE)))
        story.wait(2.0)
    return story


def pictures(story: Story, width: int = 8) -> list[dict[str, Any]]:
    """As the hubs of nodes of `width` ranks would send them, through JSON."""
    ranks = [rank for _, rank in sorted(story.engine.job.ranks.items())]
    return [json.loads(json.dumps(picture(ranks[at : at + width]))) for at in range(0, len(ranks), width)]


def walk(node: Node) -> list[Node]:
    return [node, *(each for child in node.children for each in walk(child))]


@given(RANKS)
def test_ranges_read_back_are_the_ranks_that_were_written(ranks: set[int]) -> None:
    spans = parse_spans(pack_ranks(sorted(ranks)))

    assert spans == spans_of(ranks)
    assert format_spans(spans) == pack_ranks(sorted(ranks))


@given(RANKS, RANKS)
def test_ranges_less_others_are_the_difference(all_of_them: set[int], some: set[int]) -> None:
    assert _without(spans_of(all_of_them), spans_of(some)) == spans_of(all_of_them - some)


@pytest.mark.parametrize(
    "text",
    ["-1", "3-1", "1,", "a", "1 ,2", "0-1048576", "99999999", "1--2", "0-5\n", "\u0661", "1," * (5 << 20)],
)
def test_what_is_no_range_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="rank"):
        parse_spans(text)


def test_whole_world_in_one_range_costs_one_range() -> None:
    assert parse_spans(f"0-{(1 << 20) - 1}") == ((0, (1 << 20) - 1),)


def test_many_nodes_come_to_the_classes_that_one_look_at_all_ranks_gives() -> None:
    story = job(1024, {77: DATA, 500: SLEEP, 501: SLEEP})

    merged = merge(pictures(story))

    mains = {format_spans(merged.ranks[key]) for key, place in merged.classes.items() if place.role == "main"}
    assert mains == {"77", "500-501", "0-76,78-499,502-1023"}
    assert mains == {pack_ranks(one.ranks) for one in stack_classes(story.engine)}
    assert (merged.bad, merged.unknown) == (0, ())


def test_merge_of_merges_is_the_merge_of_all() -> None:
    told = pictures(job(64, {5: DATA, 40: SLEEP}))

    upper = [json.loads(json.dumps(merge(told[at : at + 4]).to_json())) for at in range(0, len(told), 4)]

    assert merge(upper).to_json() == merge(told).to_json()


def test_class_that_the_other_side_knows_is_sent_as_its_hash_alone() -> None:
    story = job(8, {3: DATA})
    known = merge(pictures(story)).classes

    again = picture(story.engine.job.ranks.values(), known)

    assert again["classes"] == {}
    assert merge([again]).unknown == tuple(again["ranks"])
    assert merge([again], known).to_json() == merge(pictures(story)).to_json()


def test_tree_parts_where_the_ranks_part_with_the_fewest_first() -> None:
    merged = merge(pictures(job(64, {5: DATA})))

    tree_of_all = merged.tree()

    fork = next(node for node in walk(tree_of_all) if len(node.children) > 1)
    assert fork.step == "train (/app/train.py:200)" and fork.count == 64
    assert [(format_spans(child.ranks), child.count) for child in fork.children] == [
        ("5", 1),
        ("0-4,6-63", 63),
    ]
    for node in walk(tree_of_all):
        assert node.count == node.ends + sum(child.count for child in node.children)


def test_what_the_last_samples_share_stands_and_the_rest_moves() -> None:
    # given rank 0 on its way through the steps of train.py and rank 1 that waits
    story = Story([], world=2)
    for line in (201, 205, 209):
        walking = (*ALL_REDUCE[:2], f"train /app/train.py:{line}", "forward /app/model.py:7")
        story.tell(stack(0, story.now, walking), stack(1, story.now, ALL_REDUCE))
        story.wait(2.0)

    nodes = {node.step: node.moving for node in walk(merge(pictures(story)).tree())}

    assert nodes["main (/app/train.py:250)"] == 0
    assert nodes["train (/app/train.py:209)"] == nodes["forward (/app/model.py:7)"] == 1
    assert nodes["train (/app/train.py:200)"] == 0
    text = classes_text(stack_classes(story.engine), 100)
    assert "rank 0: other in forward (/app/model.py:7); moving below main (/app/train.py:250)" in text
    assert "distributed_c10d.py:3173); unchanged for 4 s" in text


def test_one_sample_says_neither_that_it_stands_nor_that_it_moves() -> None:
    assert standing_steps([("a",)]) is None
    assert standing_steps([("a", "b"), ("a", "b")]) == 2
    assert standing_steps([("a", "b", "c"), ("a", "x"), ("a", "b", "c")]) == 1


def test_children_and_other_threads_are_roles_of_their_own() -> None:
    story = Story([], world=1)
    story.tell(tree(0, story.now, process(50), process(51)), stack(0, story.now, DATA))
    story.tell(stack(0, story.now, WORKER, pid=50), stack(0, story.now, IDLE, pid=51))

    places = places_of(story.engine.job.ranks[0])

    worker = "DataLoader worker"
    assert [(place.role, place.name) for place in places] == [
        ("main", ""),
        ("child", worker),
        ("idle", worker),
    ]


def test_digest_stays_while_a_rank_stands_and_changes_when_it_does_not() -> None:
    story = job(2, {1: DATA})
    before = [digest(places_of(rank)) for rank in story.engine.job.ranks.values()]

    story.tell(stack(0, story.now, ALL_REDUCE), stack(1, story.now, SLEEP))

    after = [digest(places_of(rank)) for rank in story.engine.job.ranks.values()]
    assert before[0] == after[0] and before[1] != after[1] and before[0] != before[1]


KEYS = st.sampled_from(["classes", "ranks", "moving", "role", "path", "name", "activity", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


@given(st.lists(JSON, max_size=4))
def test_nothing_that_a_stranger_sends_breaks_the_merge(told: list[Any]) -> None:
    merged = merge(told)

    merged.tree().to_json()
    json.dumps(merged.to_json())


def test_class_under_a_hash_that_is_not_its_own_is_left_out() -> None:
    told = picture(job(2, {}).engine.job.ranks.values())
    ((key, honest),) = told["classes"].items()
    forged = {**honest, "path": ["rm_rf (/evil.py:1)"]}

    merged = merge([{"classes": {key: forged}, "ranks": told["ranks"]}, told])

    assert merged.bad == 1
    assert merged.classes[key].path[-1] == "all_reduce (torch/distributed/distributed_c10d.py)"


def test_bad_range_of_one_node_takes_nothing_from_the_others() -> None:
    merged = merge([{"ranks": {"k": "0-3"}}, {"ranks": {"k": "9-"}}, {"ranks": {"k": "8-11"}}])

    assert (format_spans(merged.ranks["k"]), merged.bad) == ("0-3,8-11", 1)


def test_deep_recursion_is_cut_in_the_middle_and_its_tree_can_be_written() -> None:
    story = Story([], world=1)
    story.tell(stack(0, story.now, [f"f{n} /app/deep.py:{n}" for n in range(1000)]))

    merged = merge(pictures(story))

    (place,) = merged.classes.values()
    assert len(place.path) == 201 and place.path[100] == "..." and place.path[-1] == "f999 (/app/deep.py:999)"
    json.dumps(merged.tree().to_json())


def test_hundred_thousand_ranks_by_hashes() -> None:
    outer = tuple(f"f{i} (m.py:{i})" for i in range(20))
    table = [StackSite("main", "", "collective", (*outer, f"leaf{n} (x.py:{n})")) for n in range(40)]
    keys = [place.key for place in table]
    chosen = random.Random(1).choices(range(40), k=100_000)
    told = []
    for first in range(0, 100_000, 8):
        ranks: dict[str, list[int]] = {}
        for rank in range(first, first + 8):
            ranks.setdefault(keys[chosen[rank]], []).append(rank)
        told.append({"ranks": {key: pack_ranks(who) for key, who in ranks.items()}})

    merged = merge(told, dict(zip(keys, table, strict=True)))

    assert all(
        merged.ranks[keys[n]] == spans_of(r for r in range(100_000) if chosen[r] == n) for n in range(40)
    )
    fork = next(node for node in walk(merged.tree()) if len(node.children) > 1)
    assert fork.step == "f19 (m.py:19)" and len(fork.children) == 40 and fork.count == 100_000


def test_text_of_sixteen_thousand_ranks_fits_a_screen_and_names_the_outlier_first() -> None:
    story = job(16384, {77: DATA, **dict.fromkeys(range(0, 16384, 2), SLEEP)}, samples=2)

    lines = classes_text(stack_classes(story.engine), 100).splitlines()

    assert lines[0] == "ranks 0-16383 share:"
    assert len(lines) < 40 and all(len(line) <= 100 for line in lines)
    titles = [line for line in lines if line.startswith("  rank")]
    assert titles[0].startswith("  rank 77: data in __next__")
    assert "(8192 of them)" in titles[1] + titles[2]


def test_of_two_ranks_the_one_that_does_not_wait_for_its_peer_comes_first() -> None:
    lines = classes_text(stack_classes(job(2, {1: DATA}).engine), 100).splitlines()

    assert [line.split(":")[0] for line in lines if line.startswith("  rank")] == ["  rank 1", "  rank 0"]


def test_text_of_ranks_in_places_of_their_own_shows_the_rarest_and_the_largest() -> None:
    own = {rank: (*SLEEP[:3], f"step{rank % 100} /app/train.py:{rank % 100}") for rank in range(5000)}

    lines = classes_text(stack_classes(job(6000, own, samples=1).engine), 100).splitlines()

    assert any("in 61 more places" in line for line in lines) and len(lines) < 200
    assert lines[-2].endswith(
        "all_reduce (torch/distributed/distributed_c10d.py:3173)"
    ) or "all_reduce" in "".join(lines[-6:])


def test_empty_merge_has_an_empty_tree() -> None:
    assert Merged().tree().to_json() == {
        "step": "",
        "ranks": "",
        "count": 0,
        "moving": 0,
        "ends": 0,
        "children": [],
    }
