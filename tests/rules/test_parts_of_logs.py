"""What a log says is believed by degrees: behind a tool's prefix that nobody knows, in a line of an unknown trainer, in one
line of the driver. And no rank is named that the log does not tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.engine.engine import Engine
from diag.engine.replay import replay
from diag.model import Finding, Severity
from diag.outputs.report import report

TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 12, in <module>
    main()
  File "/job/data.py", line 40, in batch
    return table[name]
KeyError: 'image_id'
"""
STEPS = "".join(f"step {step:05d} | loss: {9 - step / 10:.4f} | dt: 5.{step} ms\n" for step in range(1, 9))
NAN = "".join(f"step {step:05d} | loss: nan | dt: 5.{step} ms\n" for step in range(9, 12))


def judged(text: str, folder: Path) -> Engine:
    log = folder / "train.log"
    log.write_text(text)
    return replay([log])[0]


def found(text: str, folder: Path) -> list[Finding]:
    return judged(text, folder).active()


# --- prefixes that nobody knows


@pytest.mark.parametrize(
    "before",
    ["        ", "[pod/w-1/pytorch]       ", "trainer 3 <err> ", "10:00:0{0}.12 gpu{0} # ", "> | ", "\t"],
)
def test_traceback_is_read_behind_a_prefix_of_its_own(before: str, tmp_path: Path) -> None:
    lines = [
        before.replace("{0}", str(number % 10)) + line for number, line in enumerate(TRACEBACK.splitlines())
    ]

    (finding, *_) = found("\n".join(lines) + "\n", tmp_path)

    assert "KeyError: 'image_id'" in finding.summary


def test_lines_that_only_quote_a_traceback_stay_as_they_are(tmp_path: Path) -> None:
    text = "[INFO] caught, trying again: Traceback (most recent call last): boom\n[INFO] step 3\n" * 3

    assert found(text, tmp_path) == []


def test_exception_alone_behind_a_host_and_an_indent_is_shown(tmp_path: Path) -> None:
    (finding,) = found("[pod/w-1/pytorch]     x3202c0: AssertionError: micro batch is 0\n", tmp_path)

    assert "micro batch is 0" in finding.summary


@pytest.mark.parametrize(
    "line", ["retry: ValueError: 3 of 5", "      raise ValueError('no')", "a ValueError: is no end"]
)
def test_word_for_an_exception_in_a_sentence_is_none(line: str, tmp_path: Path) -> None:
    assert [one for one in found(line + "\n", tmp_path) if one.klass == "python"] == []


def test_exception_above_the_sentence_of_a_chain_is_one_whatever_its_name_is(tmp_path: Path) -> None:
    text = "net.wire.ShortRead: 12 of 40 bytes\n\nDuring handling of the above exception, another exception occurred:\n\n"

    (finding,) = found(text + "Traceback (most recent call last):\n", tmp_path)

    assert "net.wire.ShortRead: 12 of 40 bytes" in finding.summary


def test_message_that_goes_on_below_its_exception_is_quoted(tmp_path: Path) -> None:
    text = TRACEBACK.replace(
        "KeyError: 'image_id'", "kv.NotFound: 2 root causes:\n  (0) shard 17 is not on disk"
    )

    (finding,) = [
        one for one in found("n0: 1\n" * 2 + text * 2, tmp_path) if one.id == "unrecognised-failure"
    ]

    assert "shard 17 is not on disk" in finding.evidence[0].excerpt


def test_warning_alone_is_shown_as_a_note(tmp_path: Path) -> None:
    (finding,) = found(
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to node-3.\n", tmp_path
    )

    assert (finding.id, finding.severity) == ("unrecognised-failure", Severity.INFO)


# --- signals


@pytest.mark.parametrize(
    ("line", "signal"),
    [
        ("[rank: 2] Received SIGTERM: 15", "SIGTERM"),
        ("worker got signal 2, leaving", "SIGINT"),
        ("Received 1 death signal, shutting down", "SIGHUP"),
    ],
)
def test_process_that_was_told_to_end_says_so(line: str, signal: str, tmp_path: Path) -> None:
    (finding,) = found(line + "\n", tmp_path)

    assert f"it was told to end by {signal}" in finding.summary
    assert finding.ranks == ((2,) if "rank" in line else ())


@pytest.mark.parametrize(
    "line", ["Received SIGUSR1", "we got 15 signals of the sensor", "received 15 messages"]
)
def test_other_signals_and_counts_are_no_end(line: str, tmp_path: Path) -> None:
    assert found(line + "\n", tmp_path) == []


def test_error_comes_before_the_signal_that_follows_from_it(tmp_path: Path) -> None:
    first = found("[rank: 1] Received SIGTERM: 15\n" + TRACEBACK, tmp_path)[0]

    assert "image_id" in first.summary


# --- the loss


def test_nan_of_an_unknown_trainer_is_told_with_the_last_good_value(tmp_path: Path) -> None:
    (finding,) = found(STEPS + NAN, tmp_path)

    assert finding.id == "loss-nan"
    assert "the loss is nan at iteration 9, and in 3 lines in all" in finding.summary
    assert "last good value was 8.2 at iteration 8" in finding.summary


def test_nan_is_told_of_one_pasted_line_and_of_a_long_log(tmp_path: Path) -> None:
    many = "".join(f"step {step} | loss: 0.{step % 97 + 10} | ok\n" for step in range(1, 5000))

    assert [one.id for one in found(NAN.splitlines()[0] + "\n", tmp_path)] == ["loss-nan"]
    (finding,) = found(many + "step 5000 | loss: nan | ok\nstep 5001 | loss: nan | ok\n", tmp_path)
    assert "at iteration 5000" in finding.summary
    assert "at iteration 4999" in finding.summary


@pytest.mark.parametrize(
    "text",
    [
        STEPS + NAN.splitlines()[0] + "\n" + STEPS.replace("step 000", "step 001"),  # one bad step
        "Epoch 0:   0%|          | 0/100 [00:00<?, ?it/s, loss=nan, v_num=0]\n" + STEPS,  # nothing yet
        "epoch 1 | train loss 0.5 | val_loss: nan\nepoch 2 | train loss 0.4 | val_loss: nan\n",
        "epoch 1 best loss: inf\nepoch 2 best loss: inf\n",
        "step 1 loss scale: inf\nstep 2 loss scale: inf\n",
        "loss nan is what to look for\n",
    ],
)
def test_nan_that_is_no_loss_or_is_over_is_not_told(text: str, tmp_path: Path) -> None:
    assert [one for one in found(text, tmp_path) if one.id == "loss-nan"] == []


# --- the driver's lines


@pytest.mark.parametrize(
    ("xid", "finding_id", "severity"),
    [
        (13, "gpu-fault", Severity.WARNING),
        (31, "gpu-fault", Severity.WARNING),
        (43, "gpu-fault", Severity.INFO),
        (63, "ecc-error", Severity.WARNING),
        (79, "gpu-fault", Severity.WARNING),
        (998, "gpu-fault", Severity.INFO),
    ],
)
def test_xid_alone_is_told(xid: int, finding_id: str, severity: Severity, tmp_path: Path) -> None:
    (finding,) = found(f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1896, name=python, text\n", tmp_path)

    assert (finding.id, finding.cause, finding.severity) == (finding_id, f"xid_{xid}", severity)
    assert finding.ranks == ()


# --- ranks and the end


def test_number_of_a_process_on_its_node_is_no_rank(tmp_path: Path) -> None:
    text = "".join(f"[default3]:{line}\n" for line in TRACEBACK.splitlines())

    engine = judged(text, tmp_path)

    assert "image_id" in engine.active()[0].summary
    assert [finding.ranks for finding in engine.active()] == [()]
    assert re.search(r"rank \d|ranks seen", report(engine)["sentence"]) is None


def test_stream_of_several_processes_blames_no_rank(tmp_path: Path) -> None:
    assert {finding.ranks for finding in found(TRACEBACK * 3, tmp_path)} == {()}


@pytest.mark.parametrize("why", ["", " DUE TO TIME LIMIT"])
def test_job_that_slurm_ended_does_not_run(why: str, tmp_path: Path) -> None:
    steps = "".join(
        f" iteration {step:8}/     100 | consumed samples: {step} | elapsed time per iteration (ms): 64.0 | lm loss: 2.0E+00 |\n"
        for step in range(1, 9)
    )
    end = f"slurmstepd: error: *** JOB 4711 ON gpu-17 CANCELLED AT 2026-11-21T10:00:00{why} ***\n"

    assert report(judged(steps + end, tmp_path))["job"]["state"] == "failed"
    before = report(judged(steps, tmp_path))
    assert before["job"]["state"] == "running"
    assert before["sentence"].startswith("The log does not tell how the job ended; ")


@pytest.mark.parametrize(("last", "size"), [(1, 2), (640, 0)])
def test_number_of_ranks_is_told_only_where_none_is_missing_between_them(
    last: int, size: int, tmp_path: Path
) -> None:
    text = (
        f"[rank0]: loading\n[rank{last}]: Traceback (most recent call last):\n"
        f'[rank{last}]:   File "/app/train.py", line 9, in main\n[rank{last}]: ValueError: no rows\n'
    )

    assert judged(text, tmp_path).job.world_size == size


def test_line_that_says_more_is_read_above_those_before_it(tmp_path: Path) -> None:
    # kubelet 1.27 (public report)
    text = (
        '  Warning  FailedMount  2m5s  kubelet  MountVolume.MountDevice failed for volume "pv-blob" : rpc error: code = Internal\n'
        "Output: mount.nfs: mounting server:/share failed, reason given by server: No such file or directory\n"
    )

    (finding,) = found(text, tmp_path)

    assert "reason given by server" in finding.summary and "pv-blob" not in finding.summary
