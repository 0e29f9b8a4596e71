"""Journals with what the kernel said of each thread, judged again."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.engine.journal import JournalReader, segments
from diag.engine.replay import replay_records
from diag.model import Finding

CAPTURES = Path(__file__).parents[1] / "captures" / "kernel-waits"


def hangs(name: str) -> list[Finding]:
    engine, _ = replay_records(JournalReader(segments(CAPTURES / name)))
    return [finding for finding in engine.all_findings() if finding.id in ("hang", "held-up")]


@pytest.mark.parametrize(
    ("name", "cause", "shown"),
    [
        (
            "thread-joins",
            "thread_does_not_end",
            "its main thread waits for thread uploader (tid 20217) to end, which waits for data from 127.0.0.1:57069",
        ),
        ("child", "child_does_not_end", "(`sleep 900`) to end, which sleeps (15 min left)"),
        ("pipe", "pipe_without_other_end", "reads from a pipe (fd 10) that no other process can write to"),
    ],
)
def test_cause_is_what_the_kernel_showed(name: str, cause: str, shown: str) -> None:
    (hang,) = hangs(name)

    assert (hang.cause, hang.ranks, hang.waiting_ranks) == (cause, (1,), (0,))
    assert shown in hang.summary
    assert any(item.kind == "waits" for item in hang.evidence)


def test_download_of_a_byte_a_second_is_no_hang() -> None:
    assert hangs("slow-download") == []
