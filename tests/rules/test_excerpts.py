"""Whatever piece of a log somebody has, and whatever stands before its lines, names the same; of a healthy log none
raises an alarm."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from diag.detectors.rules.load import packaged
from diag.detectors.rules.schema import Rule
from diag.engine.importers.log_import import LogImport, read_log
from diag.engine.replay import replay_records
from diag.knowledge.log_prefix import message_of, without_outer
from diag.model import Finding
from diag.text.progress_line import Progress

LOGS = Path(__file__).parents[1] / "captures" / "logs"
# Source lines of a traceback, which quote the words of the exception that they raise: no line of the program's.
SOURCE = re.compile(r"(?:\[rank\d+\]: ?)?\s+(?:raise|assert) ")
FORMS: dict[str, Callable[[str], str]] = {
    "as it was printed": lambda line: line,
    "markdown quote": lambda line: f"> {line}",
    "list": lambda line: f"- {line}",
    "grep -n": lambda line: f"1042:{line}",
    "srun --label": lambda line: f" 3: {line}",
    "torchrun --tee": lambda line: f"[default1]:{line}",
    "kubectl --prefix": lambda line: f"[pod/dpo-worker-0/pytorch] {line}",
    "docker --timestamps": lambda line: f"2026-11-21T10:00:00.123456789Z {line}",
    "journalctl": lambda line: f"Nov 21 10:00:00 gpu-17 train.sh[20337]: {line}",
    "pdsh": lambda line: f"worker-1: {line}",
    "colours": lambda line: f"\x1b[31m{line}\x1b[0m",
    "indented": lambda line: f"      {line}",
    "CRLF": lambda line: f"{line}\r",
    "behind a bar": lambda line: f" 38%|###8      | 3/8 [00:00<00:01,  3.31it/s]\r{line}",
}
# Another finding than the rule's own says the same, or more.
SAID_BY_OTHERS = {
    "checkpoint-not-distributed": "checkpoint-corrupt", "ecc-uncorrectable": "gpu-fault",
    "zero3-empty-tensor": "checkpoint-args-mismatch", "dataloader-worker-killed": "shm-too-small",
}  # fmt: skip


def of_text(text: str, path: Path) -> list[Finding]:
    path.write_bytes(text.encode())
    engine, _ = replay_records(LogImport(read_log(path, [], Progress())))
    return engine.active()


@cache
def decisive() -> tuple[tuple[Rule, str], ...]:
    """Each root rule with the line of each of its examples that it is for."""
    return tuple(_decisive())


def _decisive() -> Iterator[tuple[Rule, str]]:
    rules = packaged()
    for rule in rules.rules:
        if rule.role != "root" or rule.also or rule.count > 1:
            continue
        for example in rule.examples:
            for line in example.text.splitlines():
                message = message_of(without_outer(line)).text
                found = rules.find(rules.candidates(line), message)
                if not SOURCE.match(line) and any(one.rule is rule and one.role == "match" for one in found):
                    yield rule, line
                    break


@pytest.mark.parametrize("form", FORMS)
def test_line_alone_names_what_the_whole_log_would(form: str, tmp_path: Path) -> None:
    unnamed = []
    # What stands before a line has nothing to do with which line it is: each line in a quarter of the forms, and as it is.
    part = slice(None) if form == "as it was printed" else slice(list(FORMS).index(form) % 4, None, 4)
    for rule, line in decisive()[part]:
        found = of_text(FORMS[form](line) + "\n", tmp_path / "excerpt.log")
        names = {finding.rule for finding in found[:1]} | {finding.id for finding in found[:1]}
        if names.isdisjoint({rule.id, rule.finding, SAID_BY_OTHERS.get(rule.id)}):
            unnamed.append((rule.id, line[:100], [finding.summary for finding in found]))

    assert unnamed == []


def test_line_alone_is_believed_less_than_a_log_that_ends_of_it(tmp_path: Path) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
    (alone,) = of_text(line + "\n", tmp_path / "alone.log")
    (whole,) = of_text(
        f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "/app/train.py", line 3, in main\n[rank0]: {line}\n',
        tmp_path / "whole.log",
    )[:1]

    assert (alone.id, alone.severity.value, alone.confidence.value, alone.seen_alone) == (
        "cuda-oom",
        "warning",
        "low",
        True,
    )
    assert "whether the job ended of it, the log does not tell" in alone.summary
    assert (whole.id, whole.severity.value, whole.seen_alone) == ("cuda-oom", "critical", False)
    assert alone.to_json()["seen_alone"] is True and "seen_alone" not in whole.to_json()


def test_program_that_goes_on_after_its_error_is_info_and_steps_end_it(tmp_path: Path) -> None:
    error = "OSError: [Errno 28] No space left on device\n"
    (went_on,) = of_text(error + "2026-11-21 10:00:00,000 INFO trainer: next folder\n", tmp_path / "on.log")
    steps = "".join(
        f"{{'loss': 0.5{at}, 'grad_norm': 1.2, 'learning_rate': 1e-5, 'epoch': {at / 10}}}\n"
        for at in range(1, 9)
    )

    assert (went_on.severity.value, went_on.seen_alone) == ("info", True)
    assert "went on" in went_on.summary
    assert of_text(error + steps, tmp_path / "steps.log") == []


def test_what_follows_a_schedulers_word_that_it_ended_the_job_is_no_going_on(tmp_path: Path) -> None:
    steps = "".join(
        f" iteration {at:8}/    1000 | elapsed time per iteration (ms): 2739.0 | lm loss: 8.{at}E+00 |\n"
        for at in range(1, 9)
    )
    end = "slurmstepd: error: *** STEP 4711.0 ON r6i4n5 CANCELLED AT 2026-05-27T21:42:11 DUE TO TIME LIMIT ***\n"
    down = "".join(f"Killing subprocess {pid}\n" for pid in range(3000, 3060))
    (ended,) = of_text(steps + end + down + "Main process received SIGTERM, exiting\n", tmp_path / "end.log")[
        :1
    ]
    resumed = of_text(end + down + steps, tmp_path / "resumed.log")

    assert (ended.cause, ended.severity.value) == ("time_limit", "warning")
    assert not any(words in ended.summary for words in ("went on", "does not tell"))
    assert not any(finding.cause == "time_limit" for finding in resumed)


def test_signal_to_torchrun_is_no_failure_of_the_rendezvous(tmp_path: Path) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/run.py", line 892, '
        "in main\n    run(args)\n{error}\n"
    )
    error = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 158487 got signal: 15"
    (ended,) = of_text(raised.format(error=error), tmp_path / "signal.log")
    (other,) = of_text(raised.format(error="ValueError: no such backend"), tmp_path / "other.log")[:1]

    assert (ended.id, ended.cause) == ("rank-died", "launcher_signalled")
    assert ended.summary == "somebody ended the launcher by signal 15 (SIGTERM)"
    assert other.cause != "launcher_signalled"


HEALTHY = sorted(path for path in LOGS.rglob("*.log") if path.name.startswith(("healthy-", "acc-healthy")))


@pytest.mark.parametrize("log", HEALTHY, ids=lambda path: path.stem)
def test_end_of_a_healthy_log_raises_no_alarm(log: Path, tmp_path: Path) -> None:
    lines = log.read_text(errors="replace").splitlines(keepends=True)
    excerpts = ["".join(lines[-size:]) for size in (1, 5, 20, 50, 200)]
    alarms = {
        finding.summary
        for text in excerpts
        for finding in of_text(text, tmp_path / "excerpt.log")
        if finding.severity.counts
    }

    assert alarms == set()
