"""`diag replay train.log`: how a log ends, when, who died, and what a log cannot tell."""

from __future__ import annotations

import gzip
import io
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from diag.engine.importers.times import LineTimes
from diag.engine.replay import replay
from diag.outputs.report import report
from diag.outputs.terminal.text import report_text
from diag.text.progress_line import Progress

CAPTURES = Path(__file__).parents[1] / "captures"
LOGS = CAPTURES / "logs"

# Python 3.11, ms-swift 4.6.0 (megatron_dpo_4.6.0.log): a step as rank 0 prints it
STEP = (
    "{{'loss': 0.69314718, 'grad_norm': 1.10422194, 'learning_rate': 1e-05, 'iteration': '{0}/12', 'elapsed_time': '0s', "
    "'memory(GiB)': 0.0}}"
)
# torch 2.3 and before: no rank before the lines of an uncaught exception
TRACEBACK = """Traceback (most recent call last):
  File "/app/train.py", line 83, in <module>
    main()
  File "/app/train.py", line 40, in main
    loss = criterion(model(batch["input_ids"]), batch["labels"])
  File "/app/losses.py", line 12, in forward
    raise ValueError(f"batch of {n} tokens does not fit {self.most}")
ValueError: batch of 8193 tokens does not fit 8192
"""
# tests/captures/logs/elastic_2.13.log
AGENT = """W1121 00:37:02.585000 20337 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 20341 closing \
signal SIGTERM
E1121 00:37:02.756000 20337 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 \
(pid: 20342) of binary: /usr/local/bin/python3
"""
# torch 2.11, H200, tests/captures/loose/cuda_oom
OOM = """torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of \
which 10.65 GiB is free. Process 1 has 129.15 GiB memory in use. Of the allocated memory 128.50 GiB is allocated by PyTorch, and \
5.20 MiB is reserved by PyTorch but unallocated.
"""


def table() -> str:
    text = (LOGS / "elastic_2.13.log").read_text()
    return text[text.index('Traceback (most recent call last):\n  File "<frozen runpy>') :]


def replayed(tmp_path: Path, text: str, name: str = "train.log") -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(text)
    return report(replay([path])[0])


def ids(document: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(finding["id"], finding["ranks"]) for finding in document["findings"]]


def steps(first: int, last: int) -> str:
    return "".join(STEP.format(number) + "\n" for number in range(first, last + 1))


def megatron_steps(first: int, last: int) -> str:
    """As Megatron-LM prints them, a second apart."""
    line = "[2026-11-21 10:00:{0:02d}] iteration {0:8d}/      12 | lm loss: 2.0E+00 |\n"
    return "".join(line.format(number) for number in range(first, last + 1))


def test_process_whose_log_ends_with_a_traceback_died_of_it(tmp_path: Path) -> None:
    # given a log of one process, without a rank in it
    document = replayed(tmp_path, steps(1, 3) + TRACEBACK)

    # then
    assert ids(document) == [("rank-died", [0])]
    assert "ValueError: batch of 8193 tokens" in document["findings"][0]["summary"]
    assert "after iteration 3" in document["findings"][0]["summary"]
    assert document["job"]["state"] == "failed"
    assert [item.get("where") for item in document["findings"][0]["evidence"]] == [None, "train.log:11"]


def test_death_long_after_a_save_is_in_no_save_in_a_log_without_times(tmp_path: Path) -> None:
    # ms-swift 4.6.0, two gloo ranks, 2026-11-21: a data worker was killed at step 155, the save of step 100
    # long over
    saved = "[INFO:swift] Successfully saved Megatron model weights in `/out/checkpoint-4`.\n"
    killed = "RuntimeError: DataLoader worker (pid 20521) is killed by signal: Killed. \n"
    traceback = TRACEBACK.replace(TRACEBACK.splitlines()[-1] + "\n", killed)
    document = replayed(tmp_path, steps(1, 4) + saved + steps(5, 6) + traceback)

    assert [finding["id"] for finding in document["findings"]] == ["dataloader-worker-died", "rank-died"]
    assert all("after iteration 6" in finding["summary"] for finding in document["findings"])
    assert not any("saving" in finding["summary"] for finding in document["findings"])


def test_traceback_that_training_goes_on_after_killed_nobody(tmp_path: Path) -> None:
    document = replayed(tmp_path, steps(1, 3) + TRACEBACK + steps(4, 8))

    assert ids(document) == []
    assert document["job"]["state"] != "failed"


def test_exception_of_a_thread_is_no_death(tmp_path: Path) -> None:
    document = replayed(
        tmp_path, steps(1, 3) + "Exception in thread Thread-3 (_pin_memory_loop):\n" + TRACEBACK
    )

    assert ids(document) == []


@pytest.mark.parametrize("end", [AGENT + table(), AGENT], ids=["table", "the agent's line alone"])
def test_launcher_names_the_rank_whose_traceback_has_no_rank(end: str, tmp_path: Path) -> None:
    # given a log of torch before 2.4, of two ranks
    text = (
        "[INFO:swift] rank: 0, local_rank: 0, world_size: 2, local_world_size: 2\n"
        + steps(1, 3)
        + TRACEBACK
        + end
    )

    # when
    document = replayed(tmp_path, text)

    # then
    assert ids(document) == [("rank-died", [1])]
    assert "ValueError: batch of 8193 tokens" in document["findings"][0]["summary"]
    assert document["job"]["world_size"] == 2
    assert document["log"]["launcher"] == "torchrun"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("srun: error: gpu-17: task 3: Exited with exit code 1", "exit_1"),
        ("srun: error: gpu-17: task 3: Killed", "signal_9"),
        (
            "mpirun noticed that process rank 3 with PID 4711 on node gpu-17 exited on signal 11 (Segmentation fault).",
            "signal_11",
        ),
        (
            "[2023-05-12 07:24:57,912] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=3'] "
            "exits with return code = -6",
            "signal_6",
        ),
    ],
)
def test_other_launchers_name_the_rank_too(line: str, code: str, tmp_path: Path) -> None:
    document = replayed(tmp_path, steps(1, 3) + line + "\n")

    assert [(one["id"], one["ranks"], one["cause"]) for one in document["findings"]] == [
        ("rank-died", [3], code)
    ]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("Fatal Python error: Segmentation fault", "signal_11"),
        ("train.sh: line 12: 20342 Killed                  python train.py --config a.yaml", "signal_9"),
        ("terminate called after throwing an instance of 'c10::Error'", "signal_6"),
    ],
)
def test_process_that_native_code_or_the_kernel_ended_is_dead(line: str, cause: str, tmp_path: Path) -> None:
    document = replayed(tmp_path, steps(1, 3) + line + "\n")

    assert [(one["id"], one["cause"]) for one in document["findings"]] == [("rank-died", cause)]


def test_error_that_needs_a_failure_is_found_in_a_log_of_one_process(tmp_path: Path) -> None:
    raised = TRACEBACK.rpartition("ValueError")[0] + OOM

    assert "cuda-oom" in [one["id"] for one in replayed(tmp_path, steps(1, 3) + raised)["findings"]]
    assert "rank-died" not in [
        one["id"] for one in replayed(tmp_path, steps(1, 3) + raised + steps(4, 9))["findings"]
    ]


@pytest.mark.parametrize(
    "name",
    ["megatron_dpo_4.6.0", "megatron_dpo_3.8.3", "swift_dpo_3.12.6", "hf_trainer_4.57.6", "deepspeed_0.16.9"],
)
def test_log_that_ends_with_the_trainers_own_last_words_is_finished(name: str) -> None:
    engine, _, _ = replay([LOGS / f"{name}.log"])

    document = report(engine)
    assert document["job"]["state"] == "finished"
    assert document["findings"] == []
    assert "hang" not in [line["what"] for line in document["not_checked"]]


def test_log_that_just_stops_is_not_judged_but_says_where_it_stopped(tmp_path: Path) -> None:
    # given steps, and other lines for some time after them
    text = megatron_steps(1, 5)
    text += "".join(f"[2026-11-21 10:07:{number:02d}] still here\n" for number in range(10, 50))

    # when
    document = replayed(tmp_path, text)

    # then
    assert document["findings"] == []
    line = next(line for line in document["not_checked"] if line["what"] == "hang")
    assert "phase steady after iteration 5 of 12, 7 min 44 s before its last line" in line["reason"]
    assert "diag dump" in line["remedy"]


# torch 2.13, tests/captures/logs/torch/rdzv-node-missing_2.13.0.log: the end of torchrun's own traceback
RENDEZVOUS_FAILED = """Traceback (most recent call last):
  File "/usr/local/lib/python3.11/site-packages/torch/distributed/run.py", line 990, in run
  File "/usr/local/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 277, in launch_agent
torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (node-0, 29500).
"""


def test_launcher_that_failed_by_itself_is_named_where_no_rank_is_known_to_have_failed(
    tmp_path: Path,
) -> None:
    alone = replayed(tmp_path, RENDEZVOUS_FAILED)
    after_a_rank = replayed(tmp_path, steps(1, 3) + AGENT + table() + RENDEZVOUS_FAILED)

    assert [one["cause"] for one in alone["findings"] if one["id"] == "rank-died"] == ["launcher_failed"]
    assert "DistNetworkError" in next(one for one in alone["findings"] if one["id"] == "rank-died")["summary"]
    assert "launcher_failed" not in [one["cause"] for one in after_a_rank["findings"]]


def test_rank_that_came_back_after_a_restart_is_not_dead(tmp_path: Path) -> None:
    # given torchelastic restarting its workers after a failure
    start = "[INFO:swift] rank: 0, local_rank: 0, world_size: 2, local_world_size: 2\n"
    first = start + steps(1, 3) + "".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()) + AGENT
    end = "[INFO:swift] End time of running main: 2026-11-20 23:29:22.296012\n"
    document = replayed(tmp_path, first + start + steps(3, 12) + end)

    assert ids(document) == []
    assert document["job"]["state"] == "finished"


def test_watchdogs_words_in_one_log_name_the_rank_that_did_not_come() -> None:
    engine, _, _ = replay([CAPTURES / "loose" / "skip_collective" / f"rank{rank}.log" for rank in (0, 1)])

    found = engine.active()
    assert [(one.id, one.klass, one.ranks) for one in found] == [("hang", "peer_not_joined", (1,))]


def test_findings_stand_at_the_times_that_the_lines_tell(tmp_path: Path) -> None:
    # given a log of Megatron's form
    text = megatron_steps(1, 5)

    # when
    document = replayed(tmp_path, text + TRACEBACK)

    # then
    told = datetime(2026, 11, 21, 10, 0, 5, tzinfo=timezone.utc).timestamp()
    assert document["findings"][0]["since"] == pytest.approx(told, abs=1)
    assert document["job"]["steps"]["seconds_now"] == pytest.approx(1.0, abs=0.1)
    assert document["log"]["began"] < document["log"]["ended"]


def test_log_without_times_has_no_date(tmp_path: Path) -> None:
    """When its file was written is not when its lines were."""
    document = replayed(tmp_path, steps(1, 3) + TRACEBACK)

    assert document["findings"][0]["since"] < 1.0
    assert document["log"]["began"] is None


GLOG = "W1121 10:00:0{0}.123456  7866 context.cc:447] device 0\n"


def test_no_year_is_told_of_times_that_have_none(tmp_path: Path) -> None:
    """Neither when the file was written nor when it is read is when its lines were."""
    log = tmp_path / "train.log"
    log.write_text("".join(GLOG.format(second) for second in range(6)) + TRACEBACK)

    shown = report_text(report(replay([log])[0]))

    assert "from 11-21 10:00:00 to 10:00:05" in shown and "since 11-21 10:00:05" in shown
    assert not re.search(r"\d{4}-\d\d-\d\d", shown)


@pytest.mark.parametrize(
    "line",
    [
        "2021-11-21 10:00:07,000 - INFO - evaluated\n",
        '  [TimeInfo: *** Aborted at 1637488807 (unix time) try "date -d @1637488807" if you are using GNU date ***]\n',
    ],
)
def test_year_is_taken_from_the_times_that_have_one(line: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(GLOG.format(second) for second in range(6)) + line + TRACEBACK)

    shown = report_text(report(replay([log])[0]))

    assert "from 2021-11-21 10:00:00 to 10:00:07" in shown and "since 2021-11-21 10:00:07" in shown


def test_date_in_the_data_tells_no_year(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(GLOG.format(1) + "sample: born 2019-03-04 12:00:00 in x\n" + GLOG.format(5) + TRACEBACK)

    assert "2019" not in report_text(report(replay([log])[0]))


def test_clock_of_a_log_never_goes_back_nor_leaps_for_a_date_in_the_data() -> None:
    # given lines of two clocks, eight hours apart, with dates in the data between them
    times = LineTimes(2026)
    told: list[float | None] = []
    for line in (
        "[2026-11-21 18:00:00] iteration 1/ 12 |",
        "E1121 10:00:01.000000 20337 torch/x.py:1] y",
        "sample: 2019-01-01 00:00:00 x",
        "sample: 2031-05-05 00:00:00 x",
        "[2026-11-21 18:00:03] iteration 2/ 12 |",
        "no time here",
        "[2026-11-21 17:59:00] torn",
    ):
        times.read(line)
        told.append(times.at)

    # then
    begin = datetime(2026, 11, 21, 18, tzinfo=timezone.utc).timestamp()
    assert told == [pytest.approx(begin + after, abs=1.1) for after in (0, 1, 1, 1, 3, 3, 3)]


def test_log_that_goes_on_days_later_is_followed() -> None:
    times = LineTimes(2026)
    for line in ("[2026-11-21 18:00:00] a", "[2026-11-25 09:00:00] b", "[2026-11-25 09:00:02] c"):
        times.read(line)

    assert times.at == datetime(2026, 11, 25, 9, 0, 2, tzinfo=timezone.utc).timestamp()


def test_packed_log_and_ranks_own_logs_give_the_same(tmp_path: Path) -> None:
    # given
    text = steps(1, 3) + TRACEBACK
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "rank0.log").write_text(steps(1, 3))
    (tmp_path / "rank5.log").write_text(text)

    # then
    assert ids(report(replay([tmp_path / "train.log.gz"])[0])) == [("rank-died", [0])]
    assert ids(report(replay([tmp_path / "rank0.log", tmp_path / "rank5.log"])[0])) == [("rank-died", [5])]


def test_no_line_of_a_large_log_is_dropped(tmp_path: Path) -> None:
    # given an error in the middle of 30,000 other lines
    noise = "worker fetched a batch of the shard and waits for the next\n" * 15_000
    text = steps(1, 3) + noise + TRACEBACK + noise

    # when
    document = replayed(tmp_path, text)

    # then
    assert ids(document) == [("rank-died", [0])]
    assert document["findings"][0]["evidence"][1]["where"] == "train.log:15011"
    assert document["log"]["lines"] == 30_011


def test_report_of_a_failure_is_little_more_than_a_screen(tmp_path: Path) -> None:
    for log in (LOGS / "elastic_2.13.log", CAPTURES / "loose" / "cudnn_mismatch" / "job.log"):
        engine, _, _ = replay([log])
        # of 80 columns, whole lines of evidence included
        assert len(report_text(report(engine), width=80).splitlines()) <= 34


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_a_terminal_only_and_says_what_is_left() -> None:
    # given 100 MB of which a quarter was read in 2 s
    file = io.BytesIO(b"x" * 100)
    now = [0.0]
    terminal, pipe = Terminal(), io.StringIO()
    bars = [Progress(stream, lambda: now[0]) for stream in (terminal, pipe)]
    for bar in bars:
        bar.add(file, 100)
    file.seek(25)
    now[0] = 2.0

    # when
    for bar in bars:
        bar.read(25_000_000)
        bar.close()

    # then
    assert "11.9 MiB/s, 6 s left" in terminal.getvalue()
    assert pipe.getvalue() == ""


def test_task_that_printed_no_exception_is_quoted_with_its_last_words(tmp_path: Path) -> None:
    # numactl 2.0 and Slurm 23, `srun --label`: the other tasks waited until the limit
    document = replayed(
        tmp_path,
        "1: importing\n0: <0-7,64-71> is invalid\nsrun: error: n1: task 0: Exited with exit code 1\n1: ready\n"
        "0: slurmstepd: error: *** STEP 2545.7 ON n1 CANCELLED AT 2024-04-19T14:08:52 DUE TO TIME LIMIT ***\n",
    )
    (finding,) = document["findings"]

    assert 'its output holds no exception, and ends: "<0-7,64-71> is invalid"' in finding["summary"]
    assert finding["cause"] == "exit_1" and "numactl" in finding["advice"]


def test_launchers_own_lines_are_no_last_words_of_a_rank(tmp_path: Path) -> None:
    document = replayed(
        tmp_path, "training\nsrun: Terminating StepId=1.0\nsrun: error: n1: task 0: Exited with exit code 1\n"
    )
    (finding,) = document["findings"]

    assert 'ends: "training"' in finding["summary"] and "srun" not in finding["summary"]


def test_handler_of_a_crash_is_quoted(tmp_path: Path) -> None:
    crash = "[n1:222  :0:222] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x28)\n"
    document = replayed(
        tmp_path, f"640: {crash}640: ==== backtrace ====\nsrun: error: n1: task 640: Segmentation fault\n"
    )
    (finding,) = document["findings"]

    assert "Caught signal 11 (Segmentation fault" in finding["summary"]


def test_run_that_says_it_succeeded_finished(tmp_path: Path) -> None:
    # mlperf_logging 5.0
    stop = (
        ':::MLLOG {"key": "run_stop", "value": null, "metadata": {"file": "train.py", "status": "success"}}\n'
    )

    assert replayed(tmp_path, steps(1, 3) + stop)["job"]["state"] == "finished"
    assert replayed(tmp_path, steps(1, 3))["job"]["state"] != "finished"
