"""A checkpoint is not whole: a save that was cut off, a truncated file, one that could not be read at the
start."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator

from diag.detectors.checkpoint.folders import Broken, FolderDetector, cut_off_save, name_of, pointed_at
from diag.detectors.checkpoint.lines import after_iteration, ended_quietly, failed_by, line_finding
from diag.detectors.echoed_errors import failed_soon
from diag.detectors.findings import finding
from diag.knowledge.checkpoint_args import resume_advice
from diag.model import Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import CheckpointFolder, CheckpointsSeen
from diag.state.view import JobView
from diag.text.units import format_bytes

_WHILE_SECONDS = 30.0


class CheckpointCorruptDetector(FolderDetector):
    name = "checkpoint-corrupt"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        broken = list(self._folders.broken(now, job))
        loading = self._at_the_start(job)
        if loading is not None:
            yield loading
        elif broken:
            yield self._left_behind(job, broken)
        else:
            yield from self._by_lines(job)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        many = [folder for seen in job.saves.folders.values() for folder in seen.folders if not folder.listed]
        if many:
            yield NotChecked(
                f"whether {name_of(many[-1])} is whole",
                f"it has {many[-1].files} files or more, or folders that cannot be read",
                "check it by hand before you go on from it",
            )

    def _left_behind(self, job: JobView, all_broken: list[Broken]) -> Finding:
        broken = all_broken[-1]
        folder = broken.folder
        beside = folder.path.rpartition("/")[0]
        older = [one for one in all_broken[:-1] if one.folder.path.rpartition("/")[0] == beside]
        whole = self._folders.whole(folder)
        later = whole is not None and (whole.iteration or 0) > (folder.iteration or 0)
        go_on = "There is no whole checkpoint beside it: look for an older run's, or begin anew."
        last = _none_is_whole(older)
        if whole:
            flags = resume_advice(job.run.words, whole.path, whole.kind)
            go_on = f"Go on from {whole.path}, which is whole: {flags}."
            last = f"the last whole one is {name_of(whole)}"
        tracker = self._folders.tracker(beside)
        named = tracker is not None and pointed_at(beside, tracker) == folder.path
        names_it = f": {tracker[0]} names it" if named and tracker else ""
        return finding(
            self.name,
            "truncated" if folder.damaged and not folder.missing else "incomplete",
            klass="left_behind",
            since=broken.since,
            severity=Severity.WARNING if later or job.interrupted_at is not None else Severity.CRITICAL,
            confidence=Confidence.HIGH if broken.sure else Confidence.MEDIUM,
            summary=f"{name_of(folder)} is not whole ({broken.what}; {folder.files} files, "
            f"{format_bytes(folder.size_bytes)}){_why(folder, job)}; {last}",
            advice=f"{go_on} Move {folder.path} away{names_it}.",
            evidence=[
                Evidence("checkpoint", f"{one.folder.path}: {one.what}", one.since)
                for one in (broken, *older[:2])
            ],
            final=job.returncode is not None,
        )

    def _at_the_start(self, job: JobView) -> Finding | None:
        """What the job was to begin from, as it lay there before it was loaded."""
        for at, seen in self._folders.loads.values():
            folder = _to_be_loaded(seen)
            if folder is None:
                continue
            missing, damaged = (_of_interest(seen.flag, files) for files in (folder.missing, folder.damaged))
            if not (missing or damaged):
                continue
            parts = (("missing", missing), ("damaged", damaged))
            what = "; ".join(f"{word} {', '.join(names)}" for word, names in parts if names)
            others = [
                one for one in seen.folders if one is not folder and not one.missing and not one.damaged
            ]
            go_on = "Copy or download it again, or load another one."
            if others:
                flags = resume_advice(job.run.words, others[-1].path, others[-1].kind)
                go_on = f"Load {others[-1].path} instead, which is whole: {flags}."
            return finding(
                self.name,
                "truncated" if damaged else "incomplete",
                since=at,
                severity=Severity.CRITICAL if failed_soon(job, at) else Severity.WARNING,
                summary=f"the checkpoint to begin from ({seen.flag} {folder.path}) is not whole: {what}",
                advice=go_on,
                evidence=[
                    Evidence("checkpoint", f"{folder.path}: {what}", at),
                    *(line.evidence() for line in self._lines.found[:2]),
                ],
                final=True,
            )
        return None

    def _by_lines(self, job: JobView) -> Iterator[Finding]:
        quiet = ended_quietly(job)
        lines = [
            line
            for line in self._lines.found
            if not line.saving and (failed_by(job, line) or (quiet and line.ends_with_0))
        ]
        if not lines:
            return
        quietly = "; the job ended with status 0 all the same" if quiet else ""
        when = after_iteration(job) or " at the start"
        text = (
            f"{{who}} could not read a checkpoint or a file of it{when}: {lines[0].match[1].strip()}{quietly}"
        )
        yield line_finding(self.name, lines[0].cause, lines, text, confidence=Confidence.MEDIUM, final=True)


def _to_be_loaded(seen: CheckpointsSeen) -> CheckpointFolder | None:
    """Of a folder of checkpoints the one that its tracker names; a path to one checkpoint is that one."""
    if len(seen.folders) == 1 and seen.folders[0].path == seen.root:
        return seen.folders[0]
    named = pointed_at(seen.root, seen.tracker) if seen.tracker else None
    return next((folder for folder in seen.folders if folder.path == named), None)


def _of_interest(flag: str, files: tuple[str, ...]) -> tuple[str, ...]:
    """--model reads the weights alone, whatever else of a checkpoint is in the folder."""
    if "model" not in flag or "mcore" in flag:
        return files
    return tuple(
        file for file in files if "/" not in file and any(end in file for end in (".safetensors", ".bin"))
    )


def _why(folder: CheckpointFolder, job: JobView) -> str:
    """The end of the rank that died first, where it came in this save, or right after this checkpoint's last
    byte."""
    failed = [rank for rank in job.ranks.values() if rank.failed]
    dead = min(
        failed,
        key=lambda rank: (
            rank.exited_at or 0.0,
            rank.exit is not None and rank.exit.signal == signal.SIGTERM,
        ),
        default=None,
    )
    at = dead.exited_at if dead else job.run.ended_at
    soon = at is not None and abs(at - folder.changed_at) < _WHILE_SECONDS
    if not soon and cut_off_save(folder, job) is None:
        return ""
    if dead is None:
        return ": the job ended while it was written"
    killed = dead.exit is not None and dead.exit.signal
    how = f"was killed by signal {killed}" if killed else "failed"
    return f": rank {dead.rank} {how} while it was written"


def _none_is_whole(older: list[Broken]) -> str:
    """Asynchronous saves overlap: the one before may still have waited for its `.metadata` when the job died."""
    if not older:
        return "no other checkpoint is there"
    names = ", ".join(name_of(one.folder) for one in older[-3:])
    return f"{names} beside it {'is' if len(older) == 1 else 'are'} not whole either"
