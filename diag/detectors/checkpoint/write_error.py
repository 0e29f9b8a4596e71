"""A checkpoint could not be written, for another reason than a full disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from diag.detectors.checkpoint.lines import QuotedLine, QuotedLines, Rule, failed_by, in_a_save, ranks_of
from diag.model import JOB, Confidence, Finding, NotChecked, Severity
from diag.model.observations import LogLine
from diag.state.view import JobView
from diag.text.units import format_ranks

# CPython 3.8-3.14: OSError: [Errno 30] Read-only file system: '/out/checkpoint-4'; the words are glibc's
# strerror. Rust (safetensors): ... I/O error: Read-only file system (os error 30)
_PATH = r"(?:: '([^'\n]{1,500})')?"
_RULES = (
    Rule(
        "full", re.compile(r"No space left on device|[Dd]isk quota exceeded")
    ),  # disk-full's; what follows from it is not ours
    Rule("read_only", re.compile("Read-only file system" + _PATH)),
    Rule(
        "permission",
        re.compile(
            "(?:PermissionError: .{0,20}|I/O error: )(?:Permission denied|Operation not permitted)" + _PATH
        ),
    ),
    Rule("stale_handle", re.compile("Stale (?:NFS )?file handle" + _PATH)),
    Rule("io_error", re.compile("(?:Input/output error|Remote I/O error)" + _PATH)),
    # Lustre when its server evicted the client; FUSE (JuiceFS, s3fs, gcsfuse ...) when its process has ended
    Rule(
        "not_connected",
        re.compile(
            "(?:Cannot send after transport endpoint shutdown|Transport endpoint is not connected)" + _PATH
        ),
    ),
    Rule("too_large", re.compile("File too large" + _PATH)),
    Rule(
        "gone",
        re.compile(
            r"FileNotFoundError: \[Errno 2\] No such file or directory: "
            r"'([^'\n]{0,500}(?:checkpoint-|iter_|global_step)[^'\n]{1,200})'"
        ),
    ),
    # torch 2.13 (line numbers differ by version), and megatron-core 0.16.1, state_dict_saver.py:
    #   RuntimeError: [enforce fail at inline_container.cc:764] . PytorchStreamWriter failed writing file data/1: file write
    #       failed
    #   [rank0]: RuntimeError: Worker failure: ...
    # A writer that ended with -9 was killed, which is no error of the storage.
    Rule(
        "write_failed",
        re.compile(
            r"PytorchStreamWriter failed writing|inline_container\.cc:\d{1,6}\] \. unexpected pos"
            r"|SafetensorError: Error while serializing"
            r"|RuntimeError: Worker failure: (?!.{0,200}exit code -9)"
        ),
    ),
)
_WORDS = (
    "Errno",
    "os error",
    "PytorchStreamWriter",
    "inline_container",
    "Error while serializing",
    "Worker failure: ",
)

_WHAT = {
    "read_only": "the file system is read-only",
    "permission": "the job's user may not write there",
    "stale_handle": "the network file system lost the file (stale handle)",
    "io_error": "the device or its server failed (I/O error)",
    "not_connected": "the network file system is not connected any more",
    "too_large": "the file is larger than allowed",
    "gone": "the folder is not there any more",
    "write_failed": "the write fell short, and the error does not say why (as a rule a full disk or quota)",
}
_ADVICE = {
    "read_only": "Mount it for writing (`mount | grep PATH`; a volume with readOnly: true; a disk that the kernel remounted "
    "after errors: dmesg), or save elsewhere: --output_dir (ms-swift, HF Trainer), --save (Megatron-LM).",
    "permission": "Give the job's user the right to write there (`ls -ld PATH`, root squash of NFS, runAsUser and fsGroup of "
    "a pod), or save elsewhere: --output_dir (ms-swift, HF Trainer), --save (Megatron-LM).",
    "stale_handle": "Somebody removed or re-exported the folder while the job wrote: remount it on the node shown, keep other "
    "jobs from deleting below it, and go on from the last whole checkpoint.",
    "io_error": "Look at dmesg of the node and at the storage's own health; go on from the last whole checkpoint.",
    "not_connected": "Look at the client of the file system on the node of this rank (Lustre: dmesg, evictions; FUSE: its "
    "process, often killed for memory); go on from the last whole checkpoint.",
    "too_large": "Lift `ulimit -f`, or save to a file system without such a limit.",
    "gone": "Two jobs that save to one folder delete each other's checkpoints (--save_total_limit): give each its own "
    "--output_dir. On several nodes the folder must be on shared storage.",
    "write_failed": "Look at free space, quota and dmesg at the time shown; go on from the last whole checkpoint.",
}


class CheckpointWriteErrorDetector:
    """Meaning: a rank could not write its part of a checkpoint, and the disk is not simply full (that is
    disk-full).

    Evidence: the error in the log, with frames of a save above it or at the time of a save.

    What to do: the advice follows the cause: read_only, permission, stale_handle, io_error, not_connected,
    too_large, gone, write_failed. The checkpoint that was being written is not whole.

    False alarms: an error that the program handled by itself is a warning only.
    """

    name = "checkpoint-write-error"
    listens = (LogLine,)

    def __init__(self) -> None:
        self._lines = QuotedLines(_RULES, _WORDS)

    def observe(self, at: float, fact: LogLine) -> None:
        self._lines.observe(at, fact)

    def check(self, now: float, job: JobView) -> Iterator[Finding]:
        if any(item.cause == "full" for item in self._lines.said):
            return
        said = [item for item in self._lines.said if in_a_save(job, item)]
        if any(item.cause != "write_failed" for item in said):
            said = [item for item in said if item.cause != "write_failed"]
        if said:
            yield self._finding(job, said)

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()

    def _finding(self, job: JobView, said: list[QuotedLine]) -> Finding:
        first, ranks = said[0], ranks_of(said)
        who = format_ranks(ranks) if ranks else "the job"
        when = f" after iteration {job.iteration}" if job.iteration is not None else ""
        path = next((item.match[1] for item in said if item.match.lastindex and item.match[1]), "")
        return Finding(
            id="checkpoint-write-error",
            subject=JOB,
            ranks=ranks,
            since=first.at,
            cause=first.cause,
            final=True,
            severity=Severity.CRITICAL if failed_by(job, first) else Severity.WARNING,
            confidence=Confidence.HIGH if first.saving else Confidence.MEDIUM,
            summary=f"{who} could not write a checkpoint{when}: {_WHAT[first.cause]}"
            + (f" ({path})" if path else ""),
            advice=_ADVICE[first.cause],
            evidence=tuple(item.evidence() for item in said[:3]),
        )
