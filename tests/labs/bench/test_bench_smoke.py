"""The benchmark's arithmetic on known inputs, and that its command starts. What it measures is not judged
here."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from diag.state.stack_digest import merge, spans_of
from tests.labs.bench import asleep, captured, history, log_kinds, scale, stats, table, target
from tests.labs.bench.missed import EXPLAINED
from tests.labs.bench.stats import Interval, Step

ROOT = Path(__file__).resolve().parents[3]
MACHINE = {
    "started": "2026-11-22 18:00:00 +0000",
    "commit": "c0",
    "cores": 2,
    "cpu": "a CPU",
    "memory_gib": 24,
    "kernel": "6.1",
    "python": "3.11.7",
    "versions": {"diag": "0.1.0"},
    "seconds": 900,
    "quick": False,
    "load_meanwhile": [0.5, 1.5],
}


@pytest.mark.parametrize("kind", log_kinds.KINDS)
def test_lines_of_a_kind_are_as_many_bytes_as_asked_for(kind: str) -> None:
    lines = list(log_kinds.written(kind, 5000))

    assert 5000 <= sum(map(len, lines)) < 5000 + len(lines[-1]) + 1
    assert all(line.count(b"\n") == 1 for line in lines)


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
    windows = [
        (steps[60].start + 0.001, steps[60].end - 0.001),
        (steps[120].start + 0.001, steps[121].end - 0.001),
    ]

    losses = stats.event_losses(steps, windows, windows)

    assert losses == pytest.approx([0.025, 0.020])


def test_event_method_leaves_out_what_steps_waited_for_a_core() -> None:
    steps = (
        steps_of([0.010] * 50)
        + [Step(0.5, 0.050, 0.010, 0.040)]
        + [Step(0.55 + 0.01 * i, 0.010) for i in range(50)]
    )

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
    assert (
        "| memory \\| of it | 17 MB | bare: 9 MB | 1.9 | < 30 MB | met |" in as_text.read_text().splitlines()
    )


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

    merged = merge(
        map(json.loads, scale.pictures(200, places, keys)), {key: place for place, key in keys.items()}
    )
    whole, _ = scale.naive(scale.whole_stacks(200, places))

    by_path = {
        (place.role, place.name, *place.path): merged.ranks[key] for key, place in merged.classes.items()
    }
    assert by_path == {path: spans_of(ranks) for path, ranks in whole.items()}


def test_verdict_over_many_ranks_names_the_one() -> None:
    command = [sys.executable, "-m", "tests.labs.bench.scale_job", "512", "absent"]

    answer = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240)

    told = json.loads(answer.stdout)
    assert (told["class"], told["ranks"], told["culprits"]) == ("data_loading", [170], 1), answer.stderr
    assert told["seconds"] > 0 and told["peak_bytes"] > 1 << 20 and told["lines"] < 40


def test_command_starts() -> None:
    command = [sys.executable, "-m", "tests.labs.bench", "--help"]

    answer = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert answer.returncode == 0, answer.stderr
    assert "--quick" in answer.stdout and "--output" in answer.stdout


def test_history_has_neither_paths_nor_names_of_this_machine(tmp_path: Path) -> None:
    row = table.Row(
        "a row",
        f"not measured: no {tmp_path}/run.json on {socket.gethostname()}",
        verdict="not measured",
        key="a",
    )

    history.append(MACHINE, [row], tmp_path / "history.jsonl")

    (run,) = history.read(tmp_path / "history.jsonl")
    text = json.dumps(run)
    assert str(tmp_path) not in text and "no PATH on" in text
    assert socket.gethostname() not in run["rows"][0]["diag"]


def test_page_shows_the_newest_run_why_goals_were_missed_and_the_runs_before(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for number, verdict in ((1, "met"), (2, "missed")):
        values = {"diag": float(number)}
        row = table.Row(
            "time of a dump", f"{number} s", "a loop: 4 s", "0.5", "< 0.3 x", verdict, values, "P7 64 ranks"
        )
        history.append({**MACHINE, "commit": f"c{number}"}, [row], path)
    text = f"by hand\n{history._BEGIN}\nold\n{history._END}\nby hand too\n"

    page = history.page_of(text, history.read(path))

    assert page.startswith("by hand\n") and page.endswith("by hand too\n") and "\nold\n" not in page
    assert "| time of a dump | 2 s | a loop: 4 s | 0.5 | < 0.3 x | missed |" in page.splitlines()
    assert f"- **time of a dump**: {EXPLAINED['P7 64 ranks']}" in page.splitlines()
    told = [line.split(" | ")[1] for line in page.splitlines() if line.startswith("| 2026-")]
    assert told == ["c2", "c1"]
    assert history.page_of(page, history.read(path)) == page


def test_page_in_the_repository_is_what_its_history_renders() -> None:
    page = history.PAGE.read_text("utf-8")

    assert history.page_of(page, history.read()) == page
    for word in ("/tmp/", "/root/", "/home/", "/work/"):
        assert word not in page and word not in history.FILE.read_text("utf-8"), word


def test_a_replayed_log_is_as_large_as_asked_and_ends_in_a_failure() -> None:
    pieces = list(captured.training_log(5_000_000))

    data = b"".join(pieces)
    assert len(data) >= 5_000_000 and data.endswith(captured.FAILED.read_bytes())
    assert b"'iteration': '2/99999999'" in data and b" NCCL INFO " in data


def test_use_of_a_process_counts_all_threads_that_it_has(tmp_path: Path) -> None:
    for number, (nanoseconds, sleeps) in enumerate(((1_500_000_000, 7), (500_000_000, 5))):
        task = tmp_path / "12" / "task" / str(12 + number)
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"{nanoseconds} 77 9\n")
        (task / "status").write_text(
            f"Name:\tx\nvoluntary_ctxt_switches:\t{sleeps}\nnonvoluntary_ctxt_switches:\t99\n"
        )
    (tmp_path / "12" / "smaps_rollup").write_text("Rss:  9000 kB\nPss:  2000 kB\nPss_Dirty:  1 kB\n")

    assert asleep.use_of(12, tmp_path) == asleep.Use(2.0, 12, 2.048)
    with pytest.raises(OSError, match="13"):
        asleep.use_of(13, tmp_path)
