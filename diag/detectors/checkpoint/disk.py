"""The disk is full, or will be with the next checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from diag.detectors.checkpoint.lines import (
    LineDetector,
    QuotedLine,
    after_iteration,
    failed_by,
    in_a_save,
    line_finding,
    sharpest,
)
from diag.detectors.findings import finding, row
from diag.model import Confidence, Evidence, Finding, Severity
from diag.model.observations import CheckpointFolder, DiskSpace
from diag.state.saves import never_saves
from diag.state.view import JobView
from diag.text.units import format_bytes

_FULL_BYTES = 16 << 20
_FEW_INODES = 64
_NO_INODES_RATIO = 0.001
_HOLDS_SECONDS = 60.0


class DiskFullDetector(LineDetector):
    name = "disk-full"
    without = ("</torch_", "/dev/shm", "shared memory", "NCCL WARN")  # shm-too-small's

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        full = _is_full(job)
        lines = sharpest(
            [
                line
                for line in self._lines.found
                if _happened(job, line) and (line.cause != "write_failed" or full)
            ]
        )
        if lines:
            yield self._by_lines(job, lines)
        elif job.returncode is None and job.alive_ranks():
            found = self._next_save(job) or self._now_full(job)
            if found is not None:
                yield found

    def _by_lines(self, job: JobView, lines: list[QuotedLine]) -> Finding:
        first = lines[0]
        saving = in_a_save(job, first)
        space = _space_of(job, next((line.match[1] for line in lines if line.match.lastindex), ""), saving)
        cause = "no_space" if first.cause == "write_failed" else first.cause
        if cause == "no_space" and space is not None and _no_inodes(space):
            cause = "inodes"
        fatal = saving or any(failed_by(job, line) for line in lines)
        doing = "write a checkpoint" if saving else "write a file"
        left = f"; {_left(space)}" if space is not None else ""
        what = row(self.name, cause)["what"]
        return line_finding(
            self.name,
            cause,
            lines,
            f"{{who}} could not {doing}{after_iteration(job)}: {what}{left}",
            severity=Severity.CRITICAL if fatal else Severity.WARNING,
            confidence=Confidence.MEDIUM if first.cause == "write_failed" else Confidence.HIGH,
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
            return finding(
                self.name,
                cause,
                severity=Severity.WARNING,
                since=at,
                summary=f"the disk that {use} is full: {_left(space)}",
                evidence=[Evidence("statvfs", _left(space), at)],
                holds_seconds=_HOLDS_SECONDS,
            )
        return None

    def _next_save(self, job: JobView) -> Finding | None:
        """Before the save, with numbers. Not in one: what it has written is gone from what is free."""
        last, size = _next_size(job)
        if not size or never_saves(job.run.words):
            return None
        for root, (at, space) in job.machine.disks.items():
            if space.purpose != "save" or not space.total_bytes or _free(space) >= size:
                continue
            if last is not None and not last.path.startswith(root.rstrip("/") + "/"):
                continue
            like = f"like {PurePosixPath(last.path).name}" if last else "by its arguments"
            kept = [folder for folder in _folders(job) if folder.path.startswith(root)]
            taken = format_bytes(sum(folder.size_bytes for folder in kept))
            there = f"; {len(kept)} checkpoints there take {taken}" if kept else ""
            return finding(
                self.name,
                "next_save",
                since=at,
                confidence=Confidence.HIGH if last else Confidence.MEDIUM,
                summary=f"the next checkpoint ({format_bytes(size)}, {like}) will not fit: {_left(space)}{there}",
                words={"which": " (delete older checkpoints)" if kept else ""},
                evidence=[Evidence("statvfs", _left(space), at)],
                holds_seconds=_HOLDS_SECONDS,
            )
        return None


def _next_size(job: JobView) -> tuple[CheckpointFolder | None, int | None]:
    """The checkpoint that the next one will be like, where there is one, and the bytes it will take; 0 where
    none is to come."""
    done = job.iteration is not None and 0 < job.progress.total_iterations <= job.iteration
    if done or job.phase == "ckpt_save" or job.saves.log.unwritten is not None:
        return None, 0
    last, estimate = _last_whole(job), job.machine.memory_estimate
    return last, last.size_bytes if last else estimate.checkpoint_bytes if estimate else None


def _is_full(job: JobView) -> bool:
    return any(
        space.purpose == "save"
        and (_free(space) < max(_FULL_BYTES, 0.001 * space.total_bytes) or _no_inodes(space))
        for _, space in job.machine.disks.values()
    )


def _space_of(job: JobView, path: str, saving: bool) -> DiskSpace | None:
    """The disk that a line's path is on; else the one that checkpoints go to, for a line of a save."""
    known = [space for _, space in job.machine.disks.values()]
    over = [space for space in known if path and (path + "/").startswith(space.path.rstrip("/") + "/")]
    if over:
        return max(over, key=lambda space: len(space.path))
    save = [space for space in known if space.purpose == "save"]
    return save[0] if saving and not path and save and _is_full(job) else None


def _happened(job: JobView, line: QuotedLine) -> bool:
    """A sample of the data, or an example that the program prints, has the words too."""
    return line.traced or line.text.startswith("[rank") or in_a_save(job, line) or failed_by(job, line)


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


def _folders(job: JobView) -> list[CheckpointFolder]:
    return [folder for seen in job.saves.folders.values() for folder in seen.folders]


def _last_whole(job: JobView) -> CheckpointFolder | None:
    whole = [one for one in _folders(job) if one.size_bytes and not one.missing and not one.damaged]
    return max(whole, key=lambda folder: folder.changed_at, default=None)
