"""The benchmark's arithmetic on known inputs, and that its command starts. What it measures is not judged here."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from diag.merge import merge, spans_of
from tests.bench import scale, stats, table, target
from tests.bench.stats import Interval, Step

ROOT = Path(__file__).resolve().parents[2]


def steps_of(durations: list[float], waited: float = 0.0) -> list[Step]:
    """One after the other, from second 0 on."""
    found, at = [], 0.0
    for wall in durations:
        found.append(Step(at, wall, wall - waited, waited))
        at += wall
    return found


def test_event_method_finds_what_a_stop_takes_from_the_steps_it_falls_into() -> None:
    durations = [0.010] * 200
    durations[60], durations[120] = 0.035, 0.030  # 25 ms and 20 ms more
    steps = steps_of(durations)
    windows = [(steps[60].start + 0.001, steps[60].end - 0.001), (steps[120].start + 0.001, steps[121].end - 0.001)]

    losses = stats.event_losses(steps, windows, windows)

    assert losses == pytest.approx([0.025, 0.020])


def test_event_method_leaves_out_what_steps_waited_for_a_core() -> None:
    steps = steps_of([0.010] * 50) + [Step(0.5, 0.050, 0.010, 0.040)] + [Step(0.55 + 0.01 * i, 0.010) for i in range(50)]

    losses = stats.event_losses(steps, [(0.51, 0.52)], [(0.51, 0.52)])

    assert losses == pytest.approx([0.0])


def test_windows_beyond_the_record_count_for_nothing() -> None:
    steps = steps_of([0.010] * 100)

    assert stats.event_losses(steps, [(-1.0, -0.9), (5.0, 5.1)], []) == []


def test_quiet_windows_keep_off_the_disturbed_ones() -> None:
    steps, disturbed = steps_of([0.010] * 1000), [(float(second), second + 0.3) for second in range(10)]

    quiet = stats.quiet_windows(steps, disturbed, 0.1, 50)

    assert len(quiet) == 50
    assert not any(begin < b and a < end for begin, end in quiet for a, b in disturbed)


def test_interval_of_many_values_holds_the_median_and_is_narrow() -> None:
    values = [1.0 + 0.001 * (i % 10) for i in range(1000)]

    found = stats.interval(values)

    assert found.low <= found.mid <= found.high
    assert found.mid == pytest.approx(1.0045, abs=0.001) and found.high - found.low < 0.002


def test_interval_of_few_far_values_is_wide() -> None:
    found = stats.interval([0.5, 1.0, 3.0])

    assert (found.low, found.mid, found.high) == (0.5, 1.0, 3.0)


def test_ratios_are_of_pairs_not_of_medians() -> None:
    # A machine that is twice as slow in every second round: each pair says 10 %.
    base = [1.0, 2.0, 1.0, 2.0]

    assert stats.ratios([1.1 * value for value in base], base) == pytest.approx(Interval(1.1, 1.1, 1.1))


def test_difference_of_equal_samples_holds_zero() -> None:
    values = [0.01 * (i % 7) for i in range(100)]

    found = stats.difference(values, values)

    assert found.mid == 0.0 and found.low <= 0.0 <= found.high


def test_goal_inside_the_interval_is_neither_met_nor_missed() -> None:
    found = [stats.judge(Interval(low, 1.0, high), 1.0) for low, high in ((0.8, 0.9), (0.9, 1.1), (1.1, 1.2))]

    assert found == ["met", "unclear", "missed"]


def test_table_is_written_as_json_and_markdown(tmp_path: Path) -> None:
    row = table.Row("memory | of it", "17 MB", "bare: 9 MB", "1.9", "< 30 MB", "met", {"diag": 17.0})

    as_json, as_text = table.write(tmp_path / "new" / "bench", ["2 cores"], {"cores": 2}, [row])

    document = json.loads(as_json.read_text())
    assert document["schema"] == "diag.bench/1" and document["rows"][0]["values"] == {"diag": 17.0}
    assert "| memory \\| of it | 17 MB | bare: 9 MB | 1.9 | < 30 MB | met |" in as_text.read_text().splitlines()


def test_steps_are_read_back_without_a_line_that_is_still_written(tmp_path: Path) -> None:
    recorder = target.Recorder(tmp_path, 0)
    for _ in range(3):
        recorder.lap()
    with open(tmp_path / "steps-0.txt", "a") as file:
        file.write("17.5 0.0")

    steps = target.read_steps(tmp_path)

    assert len(steps) == 2 and all(step.wall > 0 for step in steps)


def test_hashes_and_whole_stacks_come_to_the_same_classes() -> None:
    places = scale.table_of(random.Random(7))
    keys = {place: place.key for each in places.values() for place in each}

    merged = merge(map(json.loads, scale.pictures(200, places, keys)), {key: place for place, key in keys.items()})
    whole, _ = scale.naive(scale.whole_stacks(200, places))

    by_path = {(place.role, place.name, *place.path): merged.ranks[key] for key, place in merged.classes.items()}
    assert by_path == {path: spans_of(ranks) for path, ranks in whole.items()}


def test_verdict_over_many_ranks_names_the_one() -> None:
    command = [sys.executable, "-m", "tests.bench.scale_job", "512", "absent"]

    answer = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240)

    told = json.loads(answer.stdout)
    assert (told["class"], told["ranks"], told["culprits"]) == ("data_loading", [170], 1), answer.stderr
    assert told["seconds"] > 0 and told["peak_bytes"] > 1 << 20 and told["lines"] < 40


def test_command_starts() -> None:
    command = [sys.executable, "-m", "tests.bench", "--help"]

    answer = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert answer.returncode == 0, answer.stderr
    assert "--quick" in answer.stdout and "--output" in answer.stdout
