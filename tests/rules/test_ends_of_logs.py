"""What a log says of its job's end: the program's own last words, and a start that is not the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.engine.engine import Engine
from diag.engine.replay import replay
from diag.model import Severity
from diag.outputs.report import report

EPOCHS = "".join(
    f"Epoch {epoch}, train loss: {3 / epoch:.4f}, val acc: 0.{60 + epoch}\n" for epoch in range(1, 9)
)


def judged(text: str, folder: Path) -> Engine:
    log = folder / "train.log"
    log.write_text(text)
    return replay([log])[0]


def state(text: str, folder: Path) -> str:
    return str(report(judged(text, folder))["job"]["state"])


# --- its own last words


@pytest.mark.parametrize(
    "words",
    [
        "Training complete",
        "Finished Training",
        "INFO:src.loop:Training completed successfully!",
        "2026-05-15 10:00:00,123 - INFO - pretraining is done",
        "Final model saved to out/m5.pth\nParameters: 5257",
        "[2026-05-15 10:00:00,123] INFO - 训练完成！",
        "=== TRAINING FINISHED in 512.3 s ===",
    ],
)
def test_job_that_says_that_its_training_is_done_has_finished(words: str, tmp_path: Path) -> None:
    quiet = "".join(f"test image {number}\n" for number in range(300))

    assert state(EPOCHS + words + "\n", tmp_path) == "finished"
    assert state(quiet + words + "\n" + quiet, tmp_path) == "finished"


@pytest.mark.parametrize(
    "words",
    [
        "Training epoch 3 finished",
        "Job finished",
        "Finished training fold 2 of 5",
        "Training is not complete",
        "Will be saved when training is done and evaluated",
    ],
)
def test_words_for_a_part_or_of_a_scheduler_are_no_end(words: str, tmp_path: Path) -> None:
    assert state(EPOCHS + words + "\n", tmp_path) != "finished"


def test_script_that_goes_on_from_a_failure_has_not_finished(tmp_path: Path) -> None:
    text = "python3: can't open file 'train.py': [Errno 2] No such file or directory\nTraining complete\n"

    engine = judged(EPOCHS + text, tmp_path)

    assert report(engine)["job"]["state"] != "finished"
    assert [finding.cause for finding in engine.active()] == ["script_missing"]


def test_exception_after_the_last_words_is_the_end(tmp_path: Path) -> None:
    failed = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\nKeyError: 1\n'

    assert state(EPOCHS + "Training complete\n" + failed, tmp_path) == "failed"


def test_one_rank_of_a_log_is_not_said_to_be_all(tmp_path: Path) -> None:
    failed = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\nKeyError: 1\n'

    assert "ranks seen" not in report(judged(EPOCHS + failed, tmp_path))["sentence"]


# --- an earlier start

UNPARSED = '  File "/job/prepare.py", line 71\n    data = pack(data)\n    ^\nSyntaxError: invalid syntax\n'
LATER = """Traceback (most recent call last):
  File "/job/prepare.py", line 3, in <module>
    from shapes import Box
ModuleNotFoundError: No module named 'shapes'
"""


def test_file_that_parses_by_now_is_not_what_failed(tmp_path: Path) -> None:
    found = judged(UNPARSED + LATER, tmp_path).active()

    assert found[0].id == "missing-module"
    assert not any(finding.cause == "syntax_error" for finding in found)


def test_file_that_does_not_parse_at_the_end_is(tmp_path: Path) -> None:
    assert "syntax_error" in {finding.cause for finding in judged(UNPARSED * 2, tmp_path).active()}


def test_failure_of_another_program_leaves_the_file_that_does_not_parse(tmp_path: Path) -> None:
    found = judged(UNPARSED + LATER.replace("prepare", "train"), tmp_path).active()

    assert "syntax_error" in {finding.cause for finding in found}


# --- what ended it, by its form


def test_reprs_of_exceptions_are_exceptions(tmp_path: Path) -> None:
    text = "Error in call to target 'optim.Lion':\n"
    text += "TypeError(\"Lion() missing 1 required positional argument: 'betas'\")\nfull_key: optim\n"

    (finding,) = judged(EPOCHS + text, tmp_path).active()

    assert "missing 1 required positional argument: 'betas'" in finding.summary
    assert finding.klass == "python"


@pytest.mark.parametrize(
    "line", ["raise ValueError('no')", "    except KeyError('x') as error:", "ValueError(3)"]
)
def test_calls_in_source_are_no_exceptions(line: str, tmp_path: Path) -> None:
    assert [one for one in judged(EPOCHS + line + "\n", tmp_path).active() if one.klass == "python"] == []


def test_newest_event_of_a_pending_pod_is_named(tmp_path: Path) -> None:
    events = """Events:
  Warning  FailedScheduling  9m  default-scheduler  0/4 nodes are available: waiting for a volume to be made.
  Warning  FailedScheduling  2m  default-scheduler  0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.
"""

    (finding,) = judged(events, tmp_path).active()

    assert "node affinity/selector" in finding.summary


def test_last_command_that_a_shell_could_not_start_is_named(tmp_path: Path) -> None:
    text = (
        "bash: ./prepare.sh: No such file or directory\nfetched 3 files\n" * 2
        + "run.sh: line 9: fastrun: command not found\n"
    )

    (finding,) = judged(text, tmp_path).active()

    assert "fastrun: command not found" in finding.summary
    assert "first error" not in finding.advice


def test_interrupt_that_a_trainer_reports_is_no_failure_of_the_job(tmp_path: Path) -> None:
    text = "trainer/call.py:54: UserWarning: Detected KeyboardInterrupt, attempting graceful shutdown...\n"

    (finding,) = judged(EPOCHS + text, tmp_path).active()

    assert "told to end by SIGINT" in finding.summary and "frames above" not in finding.advice


def test_condition_of_a_bare_assertion_is_quoted(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "/job/data.py", line 9, in rows\n'
    text += "    assert rows > 0\n           ^^^^^^^^\nAssertionError\n"

    assert "assert rows > 0 ... AssertionError" in judged(text, tmp_path).active()[0].summary
    assert "assert rows > 0 ... AssertionError" in judged(text * 2, tmp_path).active()[0].summary


def test_assertion_with_a_message_stays_as_it_is(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "/job/data.py", line 9, in rows\n    assert rows > 0, rows\nAssertionError: 0\n'

    assert " ... " not in judged(text, tmp_path).active()[0].summary


@pytest.mark.parametrize("before", ["", "[pod/w-1/pytorch] ", "3: ", "> "])
def test_exception_beside_frames_without_their_indent_is_read(before: str, tmp_path: Path) -> None:
    lines = (
        '    File "/job/mesh.py", line 9, in split',
        "        return cut(n)",
        "    RuntimeError: 3 devices, want 8",
    )

    found = judged("".join(f"{before}{line}\n" for line in lines), tmp_path).active()

    assert [one.klass for one in found] == ["python"] and "RuntimeError: 3 devices, want 8" in found[
        0
    ].summary


def test_failure_in_chinese_words_is_shown(tmp_path: Path) -> None:
    (finding,) = judged("🔴 训练过程中发生错误: 3 行与 4 列\n", tmp_path).active()

    assert "发生错误" in finding.summary and finding.severity is Severity.INFO


@pytest.mark.parametrize("line", ["检查完成，无错误", "没有异常", "训练第 3 步"])
def test_chinese_words_for_no_failure_are_none(line: str, tmp_path: Path) -> None:
    assert judged(line + "\n", tmp_path).active() == []


INTERRUPT = 'Traceback (most recent call last):\n  File "/job/loop.py", line 8, in wait\n    lock.acquire()\nKeyboardInterrupt\n'
BROKEN = 'Traceback (most recent call last):\n  File "/job/loop.py", line 31, in step\n    take()\nLockTrouble: not held\n'


def test_interrupt_comes_before_the_errors_that_it_leads_to(tmp_path: Path) -> None:
    # several processes, each with its own
    found = judged(EPOCHS + INTERRUPT * 2 + BROKEN * 2, tmp_path).active()

    assert '"KeyboardInterrupt"' in found[0].summary


def test_error_before_an_interrupt_is_the_root(tmp_path: Path) -> None:
    found = judged(EPOCHS + BROKEN * 2 + INTERRUPT * 2, tmp_path).active()

    assert "LockTrouble: not held" in found[0].summary
