"""The checkpoint from which the job's command would go on, and with which flags."""

from __future__ import annotations

from diag.detectors.checkpoint.folders import cut_off_save
from diag.knowledge.checkpoint_args import resume_advice
from diag.model.observations import CheckpointFolder
from diag.state.view import JobView


def last_whole(job: JobView) -> tuple[CheckpointFolder, str] | None:
    """The newest on disk that misses nothing and whose save was not cut off, as it was seen last; None where none was
    seen."""
    under_way = job.saves.log.current
    whole = [
        folder
        for seen in job.saves.folders.values()
        for folder in seen.folders
        if folder.listed
        and not (folder.missing or folder.damaged)
        and folder.size_bytes
        and folder.kind != "unknown"
        and cut_off_save(folder, job) is None
        and (under_way is None or folder.changed_at < under_way.after)
    ]
    newest = max(whole, key=lambda folder: (folder.iteration or -1, folder.changed_at), default=None)
    return None if newest is None else (newest, resume_advice(job.run.words, newest.path, newest.kind))
