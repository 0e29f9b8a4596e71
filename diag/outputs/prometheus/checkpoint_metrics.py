"""Saves and disks as samples of Prometheus: how long saves took, how large the last one is, what is free."""

from __future__ import annotations

from collections.abc import Iterator

from diag.state.saves import SAVE_SECONDS
from diag.state.view import JobView

# As METRICS of prometheus.py: name, type, unit, labels, help.
CHECKPOINT_METRICS = (
    (
        "diag_checkpoint_save_duration_seconds",
        "histogram",
        "seconds",
        "",
        "How long the ranks were in each finished save; what an asynchronous one writes behind the training is not in it.",
    ),
    (
        "diag_checkpoint_size_bytes",
        "gauge",
        "bytes",
        "",
        "The newest checkpoint on disk, while it is written as far as it is.",
    ),
    (
        "diag_disk_size_bytes",
        "gauge",
        "bytes",
        "purpose",
        "Size of the disk for checkpoints (save), temporary files (tmp) and diag's run directory (run_dir).",
    ),
    (
        "diag_disk_available_bytes",
        "gauge",
        "bytes",
        "purpose",
        "Free on the same disk, or left of the user's quota.",
    ),
)

CheckpointSample = tuple[str, tuple[str, ...], float, None]


def checkpoint_samples(job: JobView) -> Iterator[CheckpointSample]:
    """Of the last readings; whoever reads the state holds its lock."""
    counts, total = job.saves.log.histogram()
    name = "diag_checkpoint_save_duration_seconds"
    for bound, count in zip((*map(str, SAVE_SECONDS), "+Inf"), counts, strict=True):
        yield (f"{name}_bucket", (bound,), count, None)
    yield (f"{name}_sum", (), total, None)
    yield (f"{name}_count", (), counts[-1], None)
    folders = [folder for seen in job.saves.folders.values() for folder in seen.folders]
    if folders:
        yield (
            "diag_checkpoint_size_bytes",
            (),
            max(folders, key=lambda folder: folder.changed_at).size_bytes,
            None,
        )
    tightest: dict[str, tuple[int, int]] = {}
    for _, space in job.machine.disks.values():
        free = (
            space.available_bytes
            if space.quota_bytes is None
            else min(space.available_bytes, space.quota_bytes)
        )
        if space.purpose in ("save", "tmp", "run_dir"):
            tightest[space.purpose] = min(
                tightest.get(space.purpose, (free, space.total_bytes)), (free, space.total_bytes)
            )
    for purpose, (free, size) in sorted(tightest.items()):
        yield ("diag_disk_size_bytes", (purpose,), size, None)
        yield ("diag_disk_available_bytes", (purpose,), free, None)
