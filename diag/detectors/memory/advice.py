"""What to do when host memory ran out, by the limit that was met, the phase and what grew: words for the advice
of host-oom in findings.yaml."""

from __future__ import annotations

from diag.detectors.findings import row
from diag.detectors.memory.causes import Verdict
from diag.detectors.memory.messages import flag
from diag.state.view import JobView

_NOTABLE = 0.2  # of the limit


def less_after_kill(job: JobView, verdict: Verdict, phase: str, grower: str) -> str:
    """How to use less, and what else fills a cgroup."""
    texts = row("host-oom")
    parts = [_use_less(job, phase, grower)]
    group = verdict.group
    if group is not None and group.limit_bytes:
        notable = _NOTABLE * group.limit_bytes
        kinds = (("dirty", group.dirty_bytes), ("shmem", group.shmem_bytes))
        parts += [texts["beside"][name] for name, size in kinds if size > notable]
    return " ".join(parts)


def _use_less(job: JobView, phase: str, grower: str) -> str:
    texts = row("host-oom")
    use: dict[str, str] = texts["use"]
    if "DataLoader worker" in grower:
        return use["workers"]
    if phase in ("ckpt_save", "save_due"):
        flags = texts["save_flags"].items()
        given = [f"{text}; " for name, text in flags if flag(job, name) not in (None, "false", "False")]
        return use["ckpt_save"].replace("{flags}", "".join(given))
    return use.get(phase, use["other"])
