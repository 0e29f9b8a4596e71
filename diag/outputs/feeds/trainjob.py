"""Kubeflow Trainer: how far the job is, in the TrainJob's `status.trainerStatus` (Trainer 2.2 and later, feature gate
TrainJobStatus).

The controller gives each container of the trainer an address, a token and a certificate; no RBAC is needed. Of a job of
several nodes node 0 tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from diag.outputs.feeds.feed import Environment, Feed, Options, Telling, Told
from diag.outputs.feeds.https import ask

URL, CA, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
# Of the launchers that Trainer sets up; without them there is one node.
_NODE_RANKS = ("PET_NODE_RANK", "NODE_RANK", "JOB_COMPLETION_INDEX")


def lacking(options: Options, environment: Environment) -> str:
    missing = [name for name in (URL, CA, TOKEN) if not environment.get(name)]
    if not missing:
        return ""
    return (
        f"{', '.join(missing)} not set: no container of a TrainJob, or the feature gate TrainJobStatus is off"
    )


def payload(telling: Telling, options: Options, environment: Environment) -> dict[str, Any] | None:
    """None before the first step, where the log does not say how many there are, and on all nodes but the first."""
    job = telling.job
    rank = next((environment[name] for name in _NODE_RANKS if environment.get(name)), "0")
    if job is None or rank != "0" or (percent := _percent(job)) is None:
        return None
    status: dict[str, Any] = {
        "progressPercentage": percent,
        "lastUpdatedTime": datetime.fromtimestamp(job["at"], timezone.utc).isoformat(timespec="seconds"),
    }
    if (left := _seconds_left(job)) is not None:
        status["estimatedRemainingSeconds"] = left
    return {"trainerStatus": status}


def _percent(job: Mapping[str, Any]) -> int | None:
    if job.get("returncode") == 0:
        return 100
    done, total = job.get("iteration"), job.get("total_iterations")
    if done is None or not total:
        return None
    return int(max(0, min(100, done * 100 // total)))


def _seconds_left(job: Mapping[str, Any]) -> int | None:
    """None where no step was measured yet, and of a job that stands still: nobody knows when it goes on."""
    if job.get("returncode") == 0:
        return 0
    pace = (job.get("steps") or {}).get("seconds_now")
    if pace is None or job.get("state") not in ("running", "checkpointing"):
        return None
    return int(max(0.0, round((job["total_iterations"] - job["iteration"]) * pace)))


def send(payload: dict[str, Any], options: Options, environment: Environment) -> Told:
    try:
        token = Path(environment[TOKEN]).read_text().strip()  # each time: Kubernetes renews it
    except OSError as error:
        return Told(False, f"{environment[TOKEN]} cannot be read: {error.strerror}", again=True)
    answer = ask("POST", environment[URL], token=token, ca=environment[CA], body=payload)
    return Told(answer.accepted, answer.reason or f"accepted (HTTP {answer.status})", answer.again)


FEED = Feed("trainjob", (), lacking, payload, send, of_progress=True)
