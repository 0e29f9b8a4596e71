"""There is no checkpoint where one should be: the tracker or an argument names what is not there, or what is
not whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from diag.detectors.checkpoint.folders import FolderDetector, name_of, pointed_at
from diag.detectors.checkpoint.lines import QuotedLine, ended_quietly, failed_by, line_finding
from diag.detectors.echoed_errors import failed_soon
from diag.detectors.findings import finding
from diag.knowledge.checkpoint_args import named_paths, resume_advice
from diag.model import Evidence, Finding, Severity
from diag.model.observations import CheckpointsSeen
from diag.state.view import JobView


class CheckpointMissingDetector(FolderDetector):
    name = "checkpoint-missing"

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        found = self._by_lines(job) or self._by_argument(job) or self._by_tracker(now, job)
        if found is not None:
            yield found

    def _by_tracker(self, now: float, job: JobView) -> Finding | None:
        broken = {item.folder.path: item for item in self._folders.broken(now, job)}
        over = job.returncode is not None or (bool(job.ranks) and not job.alive_ranks())
        for root in self._folders.roots():
            tracker = self._folders.tracker(root)
            named = pointed_at(root, tracker) if tracker is not None else None
            if tracker is None or named is None:
                continue
            seen = job.saves.folders.get(root)
            there = seen is not None and any(folder.path == named for folder in seen.folders)
            if named not in broken and (there or not over or not self._folders.wrote_tracker(root)):
                continue
            item = broken.get(named)
            whole = self._folders.whole(item.folder if item else None)
            what = f"which is not whole ({item.what})" if item else "which is not there"
            change, by_name = "let it name a whole one", ""
            if whole:
                flags = resume_advice(job.run.words, whole.path, whole.kind)
                by_name = f" ({name_of(whole)}), or load it by name: {flags}"
                if tracker[0].endswith(".txt"):
                    change = f"write {whole.iteration} into it"
            return finding(
                self.name,
                "tracker_broken" if item else "tracker_absent_dir",
                klass="left_behind",
                since=item.since if item else now,
                summary=f"{tracker[0]} in {root} names {PurePosixPath(named).name}, {what}: the next start would "
                "load it and fail",
                advice=f"Before the next start {change}{by_name}.",
                evidence=[Evidence("checkpoint", f"{tracker[0]}: {tracker[1]}", now)],
                final=job.returncode is not None,
            )
        return None

    def _by_argument(self, job: JobView) -> Finding | None:
        saves = _paths(job, "save")
        for at, seen in self._folders.loads.values():
            what, cause = _what_is_wrong(seen)
            if not what or any(seen.root.rstrip("/").endswith(path) for path in saves):
                continue
            return finding(
                self.name,
                cause,
                since=at,
                severity=Severity.CRITICAL if failed_soon(job, at) else Severity.WARNING,
                summary=f"{seen.flag} {seen.root}: {what}",
                advice="Correct the path, and mount it on every node. Megatron-LM starts from random weights where it finds "
                "no checkpoint: --exit-on-missing-checkpoint makes it stop instead.",
                evidence=[Evidence("checkpoint", f"{seen.root}: {what}", at)],
            )
        return None

    def _by_lines(self, job: JobView) -> Finding | None:
        lines = [line for line in self._lines.found if self._matters(job, line)]
        if not lines:
            return None
        cause, path = lines[0].cause, lines[0].match[1]
        what = f"found no {path} and begins with random weights"
        if cause == "absent":
            quietly = "; the job ended with status 0 all the same" if job.returncode == 0 else ""
            what = f"found no checkpoint at {path} and ended{quietly}"
        return line_finding(self.name, cause, lines, f"the job {what}")

    def _matters(self, job: JobView, line: QuotedLine) -> bool:
        if line.cause == "absent":
            return failed_by(job, line) or ended_quietly(job)
        # "... the metadata file because load directory is not defined": none was asked for
        if line.match[1] == "because":
            return False
        folder = str(PurePosixPath(line.match[1]).parent)
        return bool(_paths(job, "load")) and not any(folder.endswith(path) for path in _paths(job, "save"))


def _paths(job: JobView, role: str) -> set[str]:
    """What the command names to load from, or to save to."""
    return {one.path.rstrip("/") for one in named_paths(job.run.words) if one.role == role}


def _what_is_wrong(seen: CheckpointsSeen) -> tuple[str, str]:
    if not seen.exists:
        return "there is nothing at this path", "absent"
    named = pointed_at(seen.root, seen.tracker) if seen.tracker else None
    if (
        named is not None
        and seen.tracker is not None
        and seen.folders
        and all(folder.path != named for folder in seen.folders)
        and seen.folders[0].path != seen.root
    ):
        return (
            f"{seen.tracker[0]} names {PurePosixPath(named).name}, which is not there",
            "tracker_absent_dir",
        )
    return "", ""
