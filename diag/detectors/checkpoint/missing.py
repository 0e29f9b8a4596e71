"""There is no checkpoint where one should be: the tracker or an argument names what is not there, or what is
not whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from diag.detectors.checkpoint.folders import Folders, name_of, pointed_at
from diag.detectors.checkpoint.lines import QuotedLine, QuotedLines, Rule, failed_at, failed_by, ranks_of
from diag.knowledge.checkpoint_args import named_paths, resume_advice
from diag.model import JOB, Confidence, Evidence, Finding, NotChecked, Severity
from diag.model.observations import CheckpointsSeen, LogLine
from diag.state.view import JobView

_RULES = (
    # Megatron-LM core_r0.13, megatron/training/checkpointing.py; it goes on with random weights:
    #   WARNING: could not find the metadata file /load/latest_checkpointed_iteration.txt
    #       will not load any checkpoints and will start from random
    Rule("from_random", re.compile(r"WARNING: could not find the metadata file (\S{1,500})")),
    # DeepSpeed, runtime/engine.py; it goes on with the weights that it has:
    #   Unable to find latest file at /load/latest, if trying to load latest checkpoint please ensure this file exists or pass ...
    Rule(
        "from_random", re.compile(r"Unable to find latest file at ([^,\n]{1,500}), if trying to load latest")
    ),
    # Megatron-LM core_r0.13 with --exit-on-missing-checkpoint; exit status 0:
    #   >> '--exit-on-missing-checkpoint' set ... exiting. <<
    Rule("absent", re.compile(r">> '(--exit-on-missing-checkpoint)' set \.\.\. exiting")),
    # megatron-core 0.16.1, dist_checkpointing; ms-swift 4.6.0 asks for iter_0000000 where there is no
    # tracker:
    #   CheckpointingException: Common file /out/checkpoint-4/iter_0000000/common.pt does not exist
    #   CheckpointingException: Checkpoint directory /out/iter_0000500 does not exist
    Rule(
        "absent",
        re.compile(
            r"CheckpointingException: (?:Common file|Checkpoint directory) (\S{1,500}) does not exist"
        ),
    ),
    # transformers 4.57, trainer.py: ValueError: Can't find a valid checkpoint at /out/checkpoint-4
    Rule("absent", re.compile(r"Can't find a valid checkpoint at (\S{1,500})")),
    # transformers 4.57, modeling_utils.py: OSError: Error no file named model.safetensors, or ... found in
    # directory /model.
    Rule("absent", re.compile(r"Error no file named [^\n]{1,300} found in directory (\S{1,500}?)\.?(?: |$)")),
)
_WORDS = (
    "could not find the metadata file",
    "Unable to find latest file",
    "--exit-on-missing-checkpoint",
    "does not exist",
    "Can't find a valid checkpoint",
    "Error no file named",
)


class CheckpointMissingDetector:
    """Meaning: a checkpoint that is named is not there: by an argument of the job, or by the tracker file
    beside the checkpoints (latest_checkpointed_iteration.txt, latest, last-checkpoint), which may also name
    one that is not whole.

    Evidence: the folder on disk, looked at when nobody writes there any more; the words of Megatron,
    DeepSpeed and transformers.

    What to do: name a whole checkpoint, or correct the tracker. Megatron-LM and DeepSpeed start from random
    weights without a further word when they find none.

    False alarms: a first start with --load and --save at one path is none, and is not reported. ms-swift
    writes its tracker before an asynchronous save begins: it is judged when that save is over.
    """

    name = "checkpoint-missing"
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
        found = self._by_lines(job) or self._by_argument(job) or self._by_tracker(now, job)
        if found is not None:
            yield found

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()

    def _by_tracker(self, now: float, job: JobView) -> Finding | None:
        broken = {item.folder.path: item for item in self._folders.broken(now, job)}
        for root in self._folders.roots():
            tracker = self._folders.tracker(root)
            named = pointed_at(root, tracker) if tracker is not None else None
            if tracker is None or named is None:
                continue
            there = (
                {folder.path for folder in job.saves.folders[root].folders}
                if root in job.saves.folders
                else set()
            )
            over = job.returncode is not None or (bool(job.ranks) and not job.alive_ranks())
            if named not in broken and (named in there or not over or not self._folders.wrote_tracker(root)):
                continue
            item = broken.get(named)
            whole = self._folders.whole(item.folder if item else None)
            what = f"which is not whole ({item.what})" if item else "which is not there"
            tell = (
                f"write {whole.iteration} into it"
                if tracker[0].endswith(".txt") and whole
                else "let it name a whole one"
            )
            flags = resume_advice(job.run.words, whole.path, whole.kind) if whole else ""
            by_name = f" ({name_of(whole)}), or load it by name: {flags}" if whole else ""
            return Finding(
                id="checkpoint-missing",
                subject=JOB,
                klass="left_behind",
                severity=Severity.CRITICAL,
                confidence=Confidence.HIGH,
                since=item.since if item else now,
                cause="tracker_broken" if item else "tracker_absent_dir",
                summary=f"{tracker[0]} in {root} names {PurePosixPath(named).name}, {what}: the next start would load it and "
                "fail",
                advice=f"Before the next start {tell}{by_name}.",
                evidence=(Evidence("checkpoint", f"{tracker[0]}: {tracker[1]}", now),),
                final=job.returncode is not None,
            )
        return None

    def _by_argument(self, job: JobView) -> Finding | None:
        saves = {item.path.rstrip("/") for item in named_paths(job.run.words) if item.role == "save"}
        for at, seen in self._folders.loads.values():
            what, cause = _what_is_wrong(seen)
            if not what or any(seen.root.rstrip("/").endswith(path) for path in saves):
                continue
            return Finding(
                id="checkpoint-missing",
                subject=JOB,
                since=at,
                cause=cause,
                final=True,
                severity=Severity.CRITICAL if failed_at(job, at) else Severity.WARNING,
                confidence=Confidence.HIGH,
                summary=f"{seen.flag} {seen.root}: {what}",
                advice="Correct the path, and mount it on every node. Megatron-LM starts from random weights where it finds "
                "no checkpoint: --exit-on-missing-checkpoint makes it stop instead.",
                evidence=(Evidence("checkpoint", f"{seen.root}: {what}", at),),
            )
        return None

    def _by_lines(self, job: JobView) -> Finding | None:
        said = [item for item in self._lines.said if self._matters(job, item)]
        if not said:
            return None
        first = said[0]
        fatal = first.cause == "absent"
        quietly = "; the job ended with status 0 all the same" if fatal and job.returncode == 0 else ""
        path = first.match[1]
        what = (
            f"found no checkpoint at {path} and ended{quietly}"
            if fatal
            else f"found no {path} and begins with random weights"
        )
        return Finding(
            id="checkpoint-missing",
            subject=JOB,
            severity=Severity.CRITICAL if fatal else Severity.WARNING,
            confidence=Confidence.HIGH,
            ranks=ranks_of(said),
            since=first.at,
            cause=first.cause,
            final=True,
            summary=f"the job {what}",
            advice="Correct the path and see that every node has it mounted. ms-swift 4.x: --mcore_model takes the "
            "checkpoint-N folder, with its latest_checkpointed_iteration.txt; Megatron-LM: --load takes the folder above "
            "iter_NNNNNNN, and --exit-on-missing-checkpoint keeps it from starting with random weights; HF Trainer: "
            "--resume_from_checkpoint.",
            evidence=tuple(item.evidence() for item in said[:3]),
        )

    def _matters(self, job: JobView, item: QuotedLine) -> bool:
        if item.cause == "absent":
            return failed_by(job, item) or (job.returncode == 0 and job.iteration is None)
        # "... the metadata file because load directory is not defined": none was asked for
        if item.match[1] == "because":
            return False
        saves = {saved.path.rstrip("/") for saved in named_paths(job.run.words) if saved.role == "save"}
        loads = [saved for saved in named_paths(job.run.words) if saved.role == "load"]
        folder = str(PurePosixPath(item.match[1]).parent)
        return bool(loads) and not any(folder.endswith(path) for path in saves)


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
