"""The disk is full, or will be with the next checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from diag.detectors.checkpoint.lines import QuotedLine, QuotedLines, Rule, failed_by, in_a_save, ranks_of
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import CheckpointFolder, DiskSpace, LogLine
from diag.state.saves import never_saves
from diag.state.view import JobView
from diag.text.units import format_bytes, format_ranks

_RULES = (
    # CPython 3.8-3.14, any write: OSError: [Errno 28] No space left on device:
    # '/out/checkpoint-4/optimizer.pt' safetensors 0.8.0 on a full tmpfs, 2026-11-21:
    #   SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)
    # megatron-core 0.16.1 on a full tmpfs, 2026-11-21: [rank0]: RuntimeError: Worker failure: [Errno 28] No
    # space left on device Whatever says it, says of what before it; in the middle of a text (a sample of the
    # data) it is somebody else's.
    Rule("no_space", re.compile(r"[:\]] ?No space left on device(?:: '([^'\n]{1,500})')?")),
    # CPython: OSError: [Errno 122] Disk quota exceeded: '...'
    Rule("quota", re.compile(r"[Dd]isk quota exceeded(?:: '([^'\n]{1,500})')?")),
    # torch 2.13 on a full tmpfs, 2026-11-21 (it does not say why; other versions have other line numbers):
    #   RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534
    #   RuntimeError: [enforce fail at inline_container.cc:764] . PytorchStreamWriter failed writing file data/1: file write
    #       failed
    Rule(
        "write_failed",
        re.compile(r"PytorchStreamWriter failed writing|inline_container\.cc:\d{1,6}\] \. unexpected pos"),
    ),
)
_WORDS = ("No space left", "quota exceeded", "PytorchStreamWriter", "inline_container")
# Shared memory has its own finding, shm-too-small.
_OF_SHARED_MEMORY = ("</torch_", "/dev/shm", "shared memory", "NCCL WARN")

_FULL_BYTES = 16 << 20
_FEW_INODES = 64
_NO_INODES_RATIO = 0.001
_HOLDS_SECONDS = 60.0


class DiskFullDetector:
    """Meaning: a disk that the job writes to is full, its user's quota or its inodes are used up, or the next
    checkpoint does not fit on what is left.

    Evidence: the error of the write in the log; statvfs and the user's quota of the folder that checkpoints
    go to and of the temporary one; the size of the last whole checkpoint, or what `diag estimate` expects,
    against what is free. Rotation (--save_total_limit) deletes the oldest after the new one is written, so a
    save always needs the whole room.

    What to do: free space, or save to another disk (--output_dir, --save); fewer and smaller checkpoints:
    --save_steps, --save_total_limit, --no_save_optim true.

    False alarms: a checkpoint much smaller than the one before it. A quota of NFS or Lustre is known by its
    error only.
    """

    name = "disk-full"
    listens = (LogLine,)

    def __init__(self) -> None:
        self._lines = QuotedLines(_RULES, _WORDS, _OF_SHARED_MEMORY)

    def observe(self, at: float, fact: LogLine) -> None:
        self._lines.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        said = [item for item in self._lines.said if _happened(job, item)]
        said = [item for item in said if item.cause != "write_failed" or self._is_full(job)]
        if any(item.cause != "write_failed" for item in said):
            said = [item for item in said if item.cause != "write_failed"]
        if said:
            yield self._by_lines(job, said)
        elif job.returncode is None and job.alive_ranks():
            found = self._next_save(job) or self._now_full(job)
            if found is not None:
                yield found

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()

    def _by_lines(self, job: JobView, said: list[QuotedLine]) -> Finding:
        first = said[0]
        saving = in_a_save(job, first)
        space = self._space_of(
            job, next((item.match[1] for item in said if item.match.lastindex), ""), saving
        )
        cause = "no_space" if first.cause == "write_failed" else first.cause
        if cause == "no_space" and space is not None and _no_inodes(space):
            cause = "inodes"
        fatal = any(failed_by(job, item) for item in said)
        ranks = ranks_of(said)
        who = format_ranks(ranks) if ranks else "the job"
        what = {
            "no_space": "no space was left on the disk",
            "quota": "the user's disk quota is used up",
            "inodes": "the file system has no free inode (number of files), though bytes are free",
        }[cause]
        doing = "write a checkpoint" if saving else "write a file"
        left = f"; {_left(space)}" if space is not None else ""
        return Finding(
            id="disk-full",
            subject=JOB,
            severity=Severity.CRITICAL if fatal or saving else Severity.WARNING,
            confidence=Confidence.MEDIUM if first.cause == "write_failed" else Confidence.HIGH,
            ranks=ranks,
            since=first.at,
            cause=cause,
            summary=f"{who} could not {doing}{_when(job)}: {what}{left}",
            advice=_ADVICE[cause],
            evidence=tuple(item.evidence() for item in said[:3]),
            final=True,
        )

    def _now_full(self, job: JobView) -> Finding | None:
        for at, space in job.machine.disks.values():
            if space.purpose not in ("save", "tmp") or not space.total_bytes:
                continue
            few = space.available_inodes is not None and space.available_inodes < _FEW_INODES
            if _free(space) >= _FULL_BYTES and not few:
                continue
            cause = "inodes" if few else "quota" if _free(space) == space.quota_bytes else "no_space"
            use = (
                "checkpoints are saved to" if space.purpose == "save" else "is the temporary folder (TMPDIR)"
            )
            return Finding(
                id="disk-full",
                subject=JOB,
                severity=Severity.WARNING,
                confidence=Confidence.HIGH,
                since=at,
                cause=cause,
                summary=f"the disk that {use} is full: {_left(space)}",
                advice=_ADVICE[cause],
                evidence=(Evidence("statvfs", _left(space), at),),
                holds_seconds=_HOLDS_SECONDS,
            )
        return None

    def _next_save(self, job: JobView) -> Finding | None:
        """Before the save, with numbers. Not in one: what it has written is gone from what is free."""
        if (
            job.phase == "ckpt_save"
            or job.saves.log.unwritten is not None
            or (job.iteration is not None and 0 < job.progress.total_iterations <= job.iteration)
        ):
            return None
        last = _last_whole(job)
        size = (
            last.size_bytes
            if last
            else job.machine.memory_estimate.checkpoint_bytes
            if job.machine.memory_estimate
            else None
        )
        if never_saves(job.run.words):
            return None
        if not size:
            return None
        for root, (at, space) in job.machine.disks.items():
            if space.purpose != "save" or not space.total_bytes or _free(space) >= size:
                continue
            if last is not None and not last.path.startswith(root.rstrip("/") + "/"):
                continue
            like = f"like {PurePosixPath(last.path).name}" if last else "as its arguments tell"
            kept = [
                folder
                for seen in job.saves.folders.values()
                for folder in seen.folders
                if folder.path.startswith(root)
            ]
            there = (
                f"; {len(kept)} checkpoints there take {format_bytes(sum(folder.size_bytes for folder in kept))}"
                if kept
                else ""
            )
            return Finding(
                id="disk-full",
                subject=JOB,
                severity=Severity.WARNING,
                since=at,
                cause="next_save",
                confidence=Confidence.HIGH if last else Confidence.MEDIUM,
                summary=f"the next checkpoint ({format_bytes(size)}, {like}) will not fit: {_left(space)}{there}",
                advice="Free space before the next save"
                + (" (delete older checkpoints)" if kept else "")
                + ", or it ends "
                "the job. For later: --save_total_limit N keeps N of them (ms-swift, HF Trainer), but deletes after it has "
                "written, so N + 1 must fit; --no_save_optim true (--no-save-optim for Megatron-LM) saves weights only, which "
                "cannot be resumed.",
                evidence=(Evidence("statvfs", _left(space), at),),
                holds_seconds=_HOLDS_SECONDS,
            )
        return None

    def _is_full(self, job: JobView) -> bool:
        return any(
            space.purpose == "save"
            and (_free(space) < max(_FULL_BYTES, 0.001 * space.total_bytes) or _no_inodes(space))
            for _, space in job.machine.disks.values()
        )

    def _space_of(self, job: JobView, path: str, saving: bool) -> DiskSpace | None:
        """The disk that a line's path is on; else the one that checkpoints go to, when it is told in a save."""
        known = [space for _, space in job.machine.disks.values()]
        over = [space for space in known if path and (path + "/").startswith(space.path.rstrip("/") + "/")]
        if over:
            return max(over, key=lambda space: len(space.path))
        save = [space for space in known if space.purpose == "save"]
        return save[0] if saving and not path and save and self._is_full(job) else None


_ADVICE = {
    "no_space": "Free space on that disk (older checkpoints, core dumps, caches), or save to another one: --output_dir "
    "(ms-swift, HF Trainer), --save (Megatron-LM). --save_total_limit N keeps only N checkpoints; N + 1 must fit. What this "
    "save left is not whole: go on from the checkpoint before it.",
    "quota": "Ask for a larger quota or delete what is not needed (`quota -s`, `lfs quota -h -u $USER PATH` on Lustre), or "
    "save to another file system: --output_dir (ms-swift, HF Trainer), --save (Megatron-LM).",
    "inodes": "Delete folders of many small files (`df -i PATH`, `du --inodes`), or save to another file system. Fewer ranks "
    "write fewer files a checkpoint.",
}


def _happened(job: JobView, item: QuotedLine) -> bool:
    """A sample of the data, or an example that somebody prints, has the words too."""
    return item.traced or item.text.startswith("[rank") or in_a_save(job, item) or failed_by(job, item)


def _free(space: DiskSpace) -> int:
    return (
        space.available_bytes if space.quota_bytes is None else min(space.available_bytes, space.quota_bytes)
    )


def _no_inodes(space: DiskSpace) -> bool:
    if space.available_inodes is None or not space.total_inodes:
        return False
    return space.available_inodes <= _NO_INODES_RATIO * space.total_inodes and _free(space) > _FULL_BYTES


def _left(space: DiskSpace) -> str:
    kind = f" ({space.file_system})" if space.file_system else ""
    inodes = (
        f", {space.available_inodes} inodes"
        if space.available_inodes is not None and _few_inodes(space)
        else ""
    )
    if space.quota_bytes is not None and space.quota_bytes < space.available_bytes:
        return f"{space.path} has {format_bytes(space.quota_bytes)} left of the user's quota{inodes}{kind}"
    return f"{space.path} has {format_bytes(space.available_bytes)} of {format_bytes(space.total_bytes)} free{inodes}{kind}"


def _few_inodes(space: DiskSpace) -> bool:
    return (space.available_inodes or 0) < _FEW_INODES or _no_inodes(space)


def _last_whole(job: JobView) -> CheckpointFolder | None:
    whole = [
        folder
        for seen in job.saves.folders.values()
        for folder in seen.folders
        if folder.size_bytes and not folder.missing and not folder.damaged
    ]
    return max(whole, key=lambda folder: folder.changed_at, default=None)


def _when(job: JobView) -> str:
    return f" after iteration {job.iteration}" if job.iteration is not None else ""
