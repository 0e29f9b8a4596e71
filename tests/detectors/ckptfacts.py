"""Checkpoints and disks as they are seen, and lines of ranks that cannot write or load."""

from __future__ import annotations

from diag.model.observations import (
    CheckpointFolder,
    CheckpointsSeen,
    DiskSpace,
    LogLine,
)
from tests.facts import Story

GIB = 1 << 30
ROOT = "/out/v0-20261121-194515"
FRAME = (
    '[rank0]:   File "/env/megatron/core/dist_checkpointing/strategies/state_dict_saver.py", line 258, '
    "in save_state_dict_async_finalize"
)


def folder(
    step: int, *missing: str, at: float = 1000.0, files: int = 15, damaged: tuple[str, ...] = ()
) -> CheckpointFolder:
    return CheckpointFolder(
        f"{ROOT}/checkpoint-{step}", "torch_dist", step, files, 5 * GIB, at, missing, damaged=damaged
    )


def seen(
    *folders: CheckpointFolder,
    tracker: tuple[str, str] | None = None,
    root: str = ROOT,
    role: str = "save",
    exists: bool = True,
    flag: str = "",
) -> CheckpointsSeen:
    return CheckpointsSeen(None, root, folders, tracker, 1000.0, role, exists, flag)


def disk(
    free: int,
    *,
    total: int = 1000 * GIB,
    quota: int | None = None,
    inodes: int | None = 10_000,
    path: str = ROOT,
    purpose: str = "save",
) -> DiskSpace:
    return DiskSpace(None, path, purpose, total, free, 1_000_000, inodes, quota, "ext4")


def said(story: Story, *lines: str, rank: int | None = 0) -> None:
    story.tell(*(LogLine(rank, "stderr", line) for line in lines))


def died(story: Story, rank: int = 0, code: int = 1) -> None:
    story.wait(2)
    for number in range(story.world):
        story.exit(number, code if number == rank else None, None if number == rank else 15)
    story.wait(2)


def ids(story: Story) -> set[str]:
    return {finding.id for finding in story.findings()} - {"rank-died"}
