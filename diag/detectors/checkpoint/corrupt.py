"""A checkpoint is not whole: a save that was cut off, a truncated file, one that could not be read at the
start."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator

from diag.detectors.checkpoint.folders import Broken, Folders, cut_off_save, name_of, pointed_at
from diag.detectors.checkpoint.lines import QuotedLines, Rule, failed_at, failed_by, ranks_of
from diag.knowledge.checkpoint_args import resume_advice
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import CheckpointFolder, CheckpointsSeen, LogLine
from diag.state.view import JobView
from diag.text.units import format_bytes, format_ranks

_RULES = (
    # torch 2.13, torch.load and torch.distributed.checkpoint of a cut-off file, 2026-11-21:
    #   RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory. This is an internal ...
    Rule(
        "unreadable",
        re.compile(r"PytorchStreamReader failed reading (?:zip archive|file [^:\n]{1,200}): ([^.\n]{1,80})"),
    ),
    # safetensors 0.8.0, 2026-11-21: header too small; invalid header length; invalid JSON in header: ...;
    #   SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered
    # 0.4 and 0.5 name it HeaderTooSmall, InvalidHeaderLength, InvalidHeaderDeserialization,
    # MetadataIncompleteBuffer.
    Rule("unreadable", re.compile(r"SafetensorError: Error while deserializing(?: header)?: ([^\n]{1,80})")),
    # torch 2.13, torch.distributed.checkpoint of a folder without `.metadata`, 2026-11-21:
    #   FileNotFoundError: [Errno 2] No such file or directory: 'dcp/.metadata'
    Rule(
        "incomplete",
        re.compile(r"No such file or directory: '([^'\n]{0,500}/(?:\.metadata|__\d{1,7}_\d{1,7}\.distcp))'"),
    ),
    # megatron-core 0.11-0.16.1, dist_checkpointing/validation.py (metadata.json is written last):
    #   CheckpointingException: DIR is not a distributed checkpoint
    Rule("incomplete", re.compile(r"CheckpointingException: (\S{1,500}) is not a distributed checkpoint")),
    # Megatron-LM core_r0.13, megatron/training/checkpointing.py; the first two end the job with exit status
    # 0:
    #   could not load the checkpoint
    #   ERROR: Invalid metadata file DIR/latest_checkpointed_iteration.txt. Exiting
    #   NotImplementedError: unknown checkpoint format in DIR
    Rule("unreadable", re.compile(r"^ {0,4}(could not load the checkpoint)$")),
    Rule("unreadable", re.compile(r"ERROR: (Invalid metadata file \S{1,500})\. Exiting")),
    Rule("unreadable", re.compile(r"(unknown checkpoint format in \S{1,500})")),
)
_WORDS = (
    "PytorchStreamReader",
    "Error while deserializing",
    "No such file or directory: '",
    "is not a distributed checkpoint",
    "could not load the checkpoint",
    "Invalid metadata file",
    "unknown checkpoint format in",
)
_WHILE_SECONDS = 30.0
_SILENT_END = ("could not load the checkpoint", "Invalid metadata file")


class CheckpointCorruptDetector:
    """Meaning: a checkpoint cannot be loaded: a save was cut off, a file in it is truncated, or the job could
    not read the one that it was to begin from.

    Evidence: the files that are there against those that its kind needs (`.metadata`, metadata.json, each
    __R_I.distcp that `.metadata` names, each shard of an index, the length in the header of safetensors, the
    end of torch's zip files), looked at when nobody writes it any more; the errors of torch, safetensors,
    Megatron and DeepSpeed while loading.

    What to do: go on from the whole one that is named, with the flags shown, and put the broken one away: the
    tracker may name it.

    False alarms: a checkpoint that another program is still copying. An asynchronous save is left alone while
    it may still end.
    """

    name = "checkpoint-corrupt"
    listens = (CheckpointsSeen, LogLine)

    def __init__(self) -> None:
        self._folders = Folders()
        self._lines = QuotedLines(_RULES, _WORDS)

    def observe(self, at: float, fact: CheckpointsSeen | LogLine) -> None:
        if isinstance(fact, CheckpointsSeen):
            self._folders.observe(at, fact)
        else:
            self._lines.observe(at, fact)

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
                f"it has {many[-1].files} files or more, or folders that may not be read",
                "check it by hand before you go on from it",
            )

    def _left_behind(self, job: JobView, all_broken: list[Broken]) -> Finding:
        broken = all_broken[-1]
        folder = broken.folder
        beside = folder.path.rpartition("/")[0]
        older = [one for one in all_broken[:-1] if one.folder.path.rpartition("/")[0] == beside]
        whole = self._folders.whole(folder)
        later = whole is not None and (whole.iteration or 0) > (folder.iteration or 0)
        why = _why(folder, job)
        go_on = (
            f"Go on from {whole.path}, which is whole: {resume_advice(job.run.words, whole.path, whole.kind)}."
            if whole
            else "There is no whole checkpoint beside it: look for an older run's, or begin anew."
        )
        tracker = self._folders.tracker(beside)
        names_it = tracker is not None and pointed_at(beside, tracker) == folder.path
        put_away = f" Move {folder.path} away" + (
            f": {tracker[0]} names it." if names_it and tracker else "."
        )
        cause = "truncated" if folder.damaged and not folder.missing else "incomplete"
        return Finding(
            id="checkpoint-corrupt",
            subject=JOB,
            klass="left_behind",
            since=broken.since,
            cause=cause,
            severity=Severity.WARNING if later or job.interrupted_at is not None else Severity.CRITICAL,
            confidence=Confidence.HIGH if broken.sure else Confidence.MEDIUM,
            summary=f"{name_of(folder)} is not whole ({broken.what}; {folder.files} files, {format_bytes(folder.size_bytes)}){why}; "
            + (f"the last whole one is {name_of(whole)}" if whole else _none_is_whole(older)),
            advice=go_on + put_away,
            evidence=tuple(
                Evidence("checkpoint", f"{one.folder.path}: {one.what}", one.since)
                for one in (broken, *older[:2])
            ),
            final=job.returncode is not None,
        )

    def _at_the_start(self, job: JobView) -> Finding | None:
        """What the job was told to begin from, as it lay there before it was loaded."""
        for at, seen in self._folders.loads.values():
            folder = _to_be_loaded(seen)
            if folder is None:
                continue
            missing, damaged = (
                _of_interest(seen.flag, folder.missing),
                _of_interest(seen.flag, folder.damaged),
            )
            words = (("missing", missing), ("damaged", damaged))
            if not (missing or damaged):
                continue
            what = "; ".join(f"{word} {', '.join(names)}" for word, names in words if names)
            others = [
                other
                for other in seen.folders
                if other is not folder and not other.missing and not other.damaged
            ]
            go_on = "Copy or download it again, or load another one."
            if others:
                flags = resume_advice(job.run.words, others[-1].path, others[-1].kind)
                go_on = f"Load {others[-1].path} instead, which is whole: {flags}."
            return Finding(
                id="checkpoint-corrupt",
                subject=JOB,
                since=at,
                cause="truncated" if damaged else "incomplete",
                severity=Severity.CRITICAL if failed_at(job, at) else Severity.WARNING,
                confidence=Confidence.HIGH,
                summary=f"the checkpoint to begin from ({seen.flag} {folder.path}) is not whole: {what}",
                advice=go_on,
                evidence=(
                    Evidence("checkpoint", f"{folder.path}: {what}", at),
                    *(item.evidence() for item in self._lines.said[:2]),
                ),
                final=True,
            )
        return None

    def _by_lines(self, job: JobView) -> Iterator[Finding]:
        said = [
            item
            for item in self._lines.said
            if not item.saving
            and (
                failed_by(job, item)
                or (_ended_quietly(job) and any(word in item.text for word in _SILENT_END))
            )
        ]
        if not said:
            return
        first, ranks = said[0], ranks_of(said)
        who = format_ranks(ranks) if ranks else "the job"
        quietly = "; the job ended with status 0 all the same" if _ended_quietly(job) else ""
        yield Finding(
            id="checkpoint-corrupt",
            subject=JOB,
            severity=Severity.CRITICAL,
            confidence=Confidence.MEDIUM,
            ranks=ranks,
            since=first.at,
            cause=first.cause,
            final=True,
            summary=f"{who} could not read a checkpoint or a file of it{_when(job)}: {first.match[1].strip()}{quietly}",
            advice="The file is not whole: a save that was cut off, a copy or a download that broke. The traceback above the "
            "line names it; compare its size with the source, or load the checkpoint before it.",
            evidence=tuple(item.evidence() for item in said[:3]),
        )


def _to_be_loaded(seen: CheckpointsSeen) -> CheckpointFolder | None:
    """Of a folder of checkpoints the one that its tracker names; a path to one checkpoint is that one."""
    if len(seen.folders) == 1 and seen.folders[0].path == seen.root:
        return seen.folders[0]
    named = pointed_at(seen.root, seen.tracker) if seen.tracker else None
    return next((folder for folder in seen.folders if folder.path == named), None)


def _of_interest(flag: str, files: tuple[str, ...]) -> tuple[str, ...]:
    """--model reads the weights alone, whatever else of a checkpoint lies beside them."""
    if "model" not in flag or "mcore" in flag:
        return files
    return tuple(
        file for file in files if "/" not in file and any(end in file for end in (".safetensors", ".bin"))
    )


def _why(folder: CheckpointFolder, job: JobView) -> str:
    """The end of the rank that died first, where it came in this save, or right after this checkpoint's last
    byte."""
    failed = [rank for rank in job.ranks.values() if rank.failed]
    dead = sorted(
        failed,
        key=lambda rank: (
            rank.exited_at or 0.0,
            rank.exit is not None and rank.exit.signal == signal.SIGTERM,
        ),
    )
    at = dead[0].exited_at if dead else job.run.ended_at
    in_it = cut_off_save(folder, job) is not None or (
        at is not None and abs(at - folder.changed_at) < _WHILE_SECONDS
    )
    if not in_it:
        return ""
    end = dead[0].exit if dead else None
    how = f"was killed by signal {end.signal}" if end is not None and end.signal else "failed"
    return (
        f": rank {dead[0].rank} {how} while it was written"
        if dead
        else ": the job ended while it was written"
    )


def _none_is_whole(older: list[Broken]) -> str:
    """Asynchronous saves overlap: the one before may still have waited for its `.metadata` when the job died."""
    if not older:
        return "no other checkpoint is there"
    names = ", ".join(name_of(one.folder) for one in older[-3:])
    return f"{names} beside it {'is' if len(older) == 1 else 'are'} not whole either"


def _ended_quietly(job: JobView) -> bool:
    return job.returncode == 0 and job.iteration is None


def _when(job: JobView) -> str:
    return " at the start" if job.iteration is None else f" after iteration {job.iteration}"
