"""What `diag replay` states of a plain log's times, progress and end follows from its lines."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from diag.engine.importers.times import LineTimes
from diag.engine.replay import replay
from diag.outputs.report import report

# mlperf_logging 4.0, a line as its logger prints it
STOP = (
    ':::MLLOG {"namespace": "", "time_ms": 1746158164760, "event_type": "INTERVAL_END", "key": "run_stop", "value": null, '
    '"metadata": {"file": "/workspace/train.py", "lineno": 31, "status": "%s"}}\n'
)


def replayed(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "train.log"
    path.write_text(text)
    return report(replay([path])[0])


@pytest.mark.parametrize(
    ("line", "hour"),
    [
        ("STARTING TIMING RUN AT 2026-04-19 10:12:16 PM", 22),
        ("0: STARTING TIMING RUN AT 2026-04-19 10:12:16 AM", 10),
        ("started 04/19/2026 12:12:16 am", 0),
        ("started 2026-04-19 12:12:16 PM.", 12),
        ("2026-04-19 10:12:16 PMIX ERROR", 10),
        ("2026-04-19 22:12:16 PM", 22),
    ],
)
def test_time_of_a_twelve_hour_clock_is_read_with_its_half_of_the_day(line: str, hour: int) -> None:
    times = LineTimes(None)

    assert times.read(line)
    assert times.at == datetime(2026, 4, 19, hour, 12, 16, tzinfo=timezone.utc).timestamp()


def test_lines_without_a_date_are_not_said_to_be_of_1970(tmp_path: Path) -> None:
    # given more lines than are read at once before the first time
    undated = "loading a shard of the data\n" * 50_000
    dated = "".join(f"2026-04-19 10:12:{second} - INFO - ready\n" for second in range(10, 40))

    bare, known = replayed(tmp_path, undated + dated), replayed(tmp_path, dated)

    assert bare["log"]["began"] is None and bare["log"]["ended"] is None
    assert known["log"]["ended"] - known["log"]["began"] == pytest.approx(29.0, abs=0.01)


def test_run_that_reached_its_target_has_finished(tmp_path: Path) -> None:
    noise = "RESULT,OBJECT_DETECTION,,5715,site,now\n" * 2000  # of them only the last are read

    assert replayed(tmp_path, STOP % "success" + noise)["job"]["state"] == "finished"
    assert replayed(tmp_path, STOP % "aborted" + noise)["job"]["state"] != "finished"
    again = STOP.replace("run_stop", "run_start") % "success"
    assert replayed(tmp_path, STOP % "success" + again)["job"]["state"] != "finished"


def test_last_word_of_a_training_may_go_on_with_its_result(tmp_path: Path) -> None:
    quiet = "evaluating the model\n" * 50
    said = (
        quiet + "2026-04-19 10:12:16,123 - INFO: Finish training: the best accuracy is 0.76 in epoch 299.\n"
    )

    assert replayed(tmp_path, said)["job"]["state"] == "finished"
    assert replayed(tmp_path, said.replace("Finish training:", "Finish epoch:"))["job"]["state"] != "finished"


def test_program_without_steps_may_have_ended_where_its_log_stops(tmp_path: Path) -> None:
    evaluation = "***** Running Evaluation *****\n  Num examples = 8\nscore 0.891\n"
    steps = "".join(
        f"[2026-11-21 10:00:0{n}] iteration {n:8d}/      12 | lm loss: 2.0E+00 |\n" for n in (1, 2)
    )

    (evaluated,) = (line["reason"] for line in replayed(tmp_path, evaluation)["not_checked"])
    (trained,) = (
        line["reason"] for line in replayed(tmp_path, steps)["not_checked"] if line["what"] == "hang"
    )

    assert "it has ended, hangs" in evaluated
    assert "it hangs, was killed" in trained


def test_epochs_as_regular_as_a_timer_are_counted_to_the_last(tmp_path: Path) -> None:
    # given some that take their time to start, and then all the same
    lines = [
        f"2026-04-19 10:{2 * n:02d}:{13 * n % 40 if n < 7 else 0:02d} [epoch:{n}/1200] [loss:{9 / (2 + n + n % 3):.4f}]"
        for n in range(28)
    ]

    document = replayed(tmp_path, "\n".join(lines) + "\nKilled\n")

    assert document["sentence"].startswith("The job failed at 10:54:00; epoch 27;")


def test_total_of_a_lap_is_not_the_total_of_epochs(tmp_path: Path) -> None:
    lines = [
        f"2026-04-19 10:{epoch:02d}:{step // 10 + step % 7:02d} - INFO - Epoch [{epoch}][{step}/449] "
        f"loss: {7 / (3 * epoch + step % 70):.4f}"
        for epoch in range(1, 6)
        for step in range(50, 450, 50)
    ]

    words = replayed(tmp_path, "\n".join(lines) + "\n")["sentence"]

    assert "step 400 of epoch 5;" in words and "of 449" not in words
