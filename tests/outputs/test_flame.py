"""Flame graphs of recorded stacks: every format reads back, names of strangers do no harm, one rank of many
is seen."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model.observations import Frame
from diag.outputs.http.flame import (
    FORMATS,
    Profile,
    Sampled,
    SeriesBuilder,
    collapsed,
    merged_profile,
    speedscope,
    svg,
    write,
)
from tests.facts import ALL_REDUCE, DATA, SLEEP, WORKER, Story, process, stack, tree

CAPTURES = Path(__file__).parents[1] / "captures" / "h200-live"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<script>alert(1)</script>",
    '"/><image href="http://evil/x"/>',
    "a;b c",
    "x\x00y\x1b[31m",
    "\ud800",
    "\ufffe",
    "]]>",
    "&lt;",
    "",
)


def profile(names: tuple[str, ...]) -> Profile:
    story = Story([], world=1)
    builder = SeriesBuilder(0)
    for _ in range(2):
        sample = stack(0, story.now, ())
        frames = tuple(Frame(name, name, 7) for name in names)
        thread = type(sample.threads[0])(sample.pid, "MainThread", frames)
        builder.add(story.now, type(sample)(0, sample.pid, (thread,), "pyspy", story.now))
        story.now += 2
    return builder.profile()


def assert_is_speedscope(text: str) -> dict[str, Any]:
    """What the published schema asks of a file of sampled profiles."""
    document: dict[str, Any] = json.loads(text)
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(
        isinstance(frame["name"], str) and frame.keys() <= {"name", "file", "line", "col"} for frame in frames
    )
    assert document["profiles"]
    for each in document["profiles"]:
        assert each["type"] == "sampled" and isinstance(each["name"], str)
        assert each["unit"] in ("none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes")
        assert len(each["samples"]) == len(each["weights"]) > 0
        assert all(0 <= index < len(frames) for sample in each["samples"] for index in sample)
        assert each["endValue"] - each["startValue"] >= sum(each["weights"]) * 0.999
    return document


def boxes(text: str) -> dict[str, float]:
    """Width of each box by its tooltip."""
    root = ET.fromstring(text)
    return {
        group.findtext(f"{SVG}title", ""): float(group.find(f"{SVG}rect").attrib["width"])
        for group in root.iter(f"{SVG}g")
    }


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4).map(tuple) | st.just(HOSTILE))
def test_any_names_make_well_formed_files_that_hold_no_code(names: tuple[str, ...]) -> None:
    made = profile(names)

    root = ET.fromstring(svg(made).encode("utf-8"))
    assert {item.tag for item in root.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "style", "rect", "text", "g")
    }
    assert not any(name.startswith("on") or "href" in name for item in root.iter() for name in item.attrib)
    assert_is_speedscope(speedscope(made))
    lines = collapsed(made).splitlines()
    assert len(lines) == 1 and lines[0].count(";") == len(names) and lines[0].rpartition(" ")[2].isdigit()


def test_time_between_samples_is_what_a_stack_weighs() -> None:
    builder = SeriesBuilder(0)
    for at, lines in ((100.0, SLEEP), (110.0, SLEEP), (112.0, DATA), (114.0, DATA)):
        builder.add(at, stack(0, at, lines))

    lines = [line.rpartition(" ") for line in collapsed(builder.profile()).splitlines()]
    by_leaf = {path.rpartition(";")[2]: int(weight) for path, _, weight in lines}

    assert by_leaf == {
        "wait_for_leader (/app/train.py:120)": 12000,
        "wait (python3.11/threading.py:331)": 4000,
    }


def test_time_that_diag_did_not_look_is_nobodys() -> None:
    builder = SeriesBuilder(0)
    for at in (100.0, 5000.0):
        builder.add(at, stack(0, at, SLEEP))

    assert sum(sample.weight for sample in builder.profile().samples) == 60.0


def test_other_ranks_and_unasked_children_are_left_out() -> None:
    alone, family = SeriesBuilder(0), SeriesBuilder(0, children=True)
    for at in (1.0, 3.0):
        for fact in (stack(0, at, DATA), stack(1, at, SLEEP), stack(0, at, WORKER, pid=50)):
            alone.add(at, fact)
            family.add(at, fact)

    assert "wait_for_leader" not in collapsed(family.profile()) and "read_record" not in collapsed(
        alone.profile()
    )
    assert "DataLoader worker;thread MainThread;_worker_loop" in collapsed(family.profile())


def merged(size: int, outlier: int) -> Profile:
    story = Story([], world=size)
    for rank in range(size):
        story.tell(stack(rank, story.now, DATA if rank == outlier else ALL_REDUCE))
    return merged_profile(story.engine)


def test_merged_graph_has_the_ranks_on_each_frame() -> None:
    text = collapsed(merged(8, 3))

    assert "train (/app/train.py:200) [0-7];__next__ (torch/utils/data/dataloader.py:741) [3];" in text
    assert "all_reduce (torch/distributed/distributed_c10d.py:3173) [0-2, 4-7] 7\n" in text
    names = {frame["name"] for frame in assert_is_speedscope(speedscope(merged(8, 3)))["shared"]["frames"]}
    assert "wait (python3.11/threading.py:331) [3]" in names


def test_one_rank_of_sixteen_thousand_is_wide_enough_to_be_seen() -> None:
    widths = boxes(svg(merged(16384, 77)))

    (lone,) = [width for title, width in widths.items() if title.startswith("__next__")]
    assert lone >= 30
    assert any(
        title.startswith("all_reduce") and "[0-76, 78-16383]: 16383 ranks" in title for title in widths
    )


def test_boxes_lie_within_their_parents() -> None:
    root = ET.fromstring(svg(merged(64, 5)))
    rows: dict[float, list[tuple[float, float]]] = {}
    for group in root.iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect").attrib
        rows.setdefault(float(box["y"]), []).append((float(box["x"]), float(box["x"]) + float(box["width"])))
    ordered = [sorted(spans) for _, spans in sorted(rows.items())]
    for above, below in pairwise(ordered):
        assert all(any(a - 0.05 <= x and end <= b + 0.05 for a, b in above) for x, end in below)
        assert all(first[1] <= second[0] + 0.05 for first, second in pairwise(below))


def test_too_many_boxes_are_left_out_and_it_is_said() -> None:
    samples = tuple(Sampled((f"f{n}", f"g{n}"), 1.0) for n in range(30_000))

    text = svg(Profile("t", "s", "seconds", samples))

    assert len(text) < 10_000_000 and "are left out" in text
    ET.fromstring(text)


def test_deep_recursion_is_drawn_without_recursion_of_ours() -> None:
    deep = Sampled(tuple(f"f{n}" for n in range(5000)), 1.0)
    for form in FORMATS:
        assert "f4999" in write(Profile("t", "s", "seconds", (deep,)), form)


def flame(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diag", "flame", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=cwd)


def test_recorded_hang_of_a_real_job_is_drawn_from_its_journal(tmp_path: Path) -> None:
    answer = flame("1", "--from", str(CAPTURES / "data-hang"), "--children", cwd=tmp_path)

    assert (answer.returncode, answer.stdout) == (0, "flame-rank1.svg\n"), answer.stderr
    widths = boxes((tmp_path / "flame-rank1.svg").read_text())
    waiting = max(
        width for title, width in widths.items() if "_try_get_data (torch/utils/data/dataloader.py" in title
    )
    main = next(width for title, width in widths.items() if title.startswith("thread MainThread"))
    assert waiting > 0.5 * main  # most of what was recorded of rank 1 is its wait for a batch
    assert any("DataLoader worker" in title for title in widths)
    assert [path.name for path in tmp_path.iterdir()] == ["flame-rank1.svg"]


def test_recorded_ranks_are_merged_into_one_speedscope_file_on_stdout(tmp_path: Path) -> None:
    answer = flame(
        "all", "--from", str(CAPTURES / "skip-collective"), "--format", "speedscope", "-o", "-", cwd=tmp_path
    )

    document = assert_is_speedscope(answer.stdout)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    assert any(name.endswith("[0-1]") for name in names) and any(name.endswith("[1]") for name in names)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("7", "--from", str(CAPTURES / "healthy")), 1, "stacks of ranks 0-1"),
        (("0", "--from", "/no/such"), 2, "does not exist"),
        (("0", "--from", str(CAPTURES / "healthy"), "-o", "/no/such/x.svg"), 1, "choose a place with -o"),
        (("0", "--from", str(CAPTURES / "healthy"), "--native"), 2, "no native frames"),
        (("-1",), 2, "not a rank"),
        (("x",), 2, "not a rank"),
        (("0", "--rate", "0"), 2, "not between 1 and 200"),
        (("0", "--seconds", "nan"), 2, "not between"),
        (("0", "--endpoint", "file:///etc/passwd"), 2, "not a hub address"),
        (("0", "--endpoint", "http://127.0.0.1:1"), 1, "does not answer"),
        (("0", "--run-dir", "/tmp"), 1, "not a run directory"),
    ],
)
def test_what_cannot_be_drawn_is_said_with_a_hint(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    answer = flame(*words, cwd=tmp_path)

    assert (answer.returncode, answer.stdout) == (code, "")
    assert said in answer.stderr and "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_children_that_ended_are_not_in_the_merged_graph() -> None:
    story = Story([], world=1)
    story.tell(
        tree(0, story.now, process(50)), stack(0, story.now, DATA), stack(0, story.now, WORKER, pid=50)
    )
    assert "read_record" in collapsed(merged_profile(story.engine, children=True))
    story.wait(1)
    story.tell(tree(0, story.now))

    assert "read_record" not in collapsed(merged_profile(story.engine, children=True))
