"""Every query of the dashboards is put to a real Prometheus over recorded jobs, and answers where it should."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.dashboards.answers import Answers
from tests.dashboards.boards import BOARDS
from tests.live.prometheus import needs_prometheus

pytestmark = [pytest.mark.live, needs_prometheus, pytest.mark.xdist_group("recorded")]

QUERIES = sorted({query for board in BOARDS for panel in board.panels for query, _ in panel.queries})


# Jobs in which a panel must have an answer: what it is for happened there.
@dataclass(frozen=True)
class Told:
    job_id: str
    board: str
    panel: str
    labels: dict[str, str]
    least: float  # the highest value is at least this


TOLD = [
    Told("data-hang", "diag-job", "Ranks that hang", {}, 1),
    Told("data-hang", "diag-job", "Findings open now", {"kind": "held-up", "severity": "warning"}, 1),
    Told("data-hang", "diag-job", "Nothing has moved for", {}, 15),
    Told("data-hang", "diag-rank", "State", {"rank": "1"}, 5),
    Told("rank-killed", "diag-job", "Ranks that died", {}, 1),
    Told("rank-killed", "diag-job", "Ranks that hang or died", {"state": "dead"}, 1),
    Told("saves", "diag-job", "Iteration", {}, 3),
    Told("saves", "diag-job", "Power of all GPUs", {}, 100),
    Told("saves", "diag-memory", "Saves finished", {}, 1),
    Told("slow-from-step", "diag-job", "Time of a step", {}, 0.1),
    Told("no-device-nodes", "diag-network", "Why not RDMA", {}, 1),
    Told("no-device-nodes", "diag-network", "Networks in use", {"net": "Socket"}, 2),
    Told("mixed-networks", "diag-network", "Networks in use", {}, 1),
    Told("port-goes-down", "diag-network", "Ports up", {}, 1),
    Told("save-too-large", "diag-memory", "What the next save needs", {}, 1),
    Told("pod-limit", "diag-memory", "OOM kills", {}, 1),
    Told("pids-limit", "diag-memory", "Processes of the fullest cgroup", {}, 10),
    Told("bundled-job", "diag-agent", "CPU of diag", {"process": "hub"}, 0.001),
    Told("bundled-job", "diag-agent", "Time of a reading", {}, 0.0001),
    Told("bundled-job", "diag-memory", "Free disk space", {}, 0.01),
    Told("gpu-troubles", "diag-job", "Samples a second", {}, 1),
    Told("gpu-troubles", "diag-rank", "Faults (Xid)", {"xid": "79"}, 1),
    Told("gpu-troubles", "diag-rank", "Clocks held back", {"reason": "hw_thermal"}, 1),
    Told("gpu-troubles", "diag-rank", "Time with clocks held back", {"reason": "thermal"}, 0.3),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    with Answers(tmp_path_factory.mktemp("recorded")) as made:
        yield made


@pytest.mark.parametrize("query", QUERIES)
def test_query_answers_where_its_metrics_are_exported(answers: Answers, query: str) -> None:
    answered = [job for job in answers.jobs if answers.ask(query, job)]

    assert answered


@pytest.mark.parametrize("told", TOLD, ids=lambda told: f"{told.job_id}: {told.panel}")
def test_panel_shows_what_happened(answers: Answers, told: Told) -> None:
    board = next(board for board in BOARDS if board.uid == told.board)
    panel = next(panel for panel in board.panels if panel.title == told.panel)

    found = [row for query, _ in panel.queries for row in answers.ask(query, told.job_id)]

    fitting = [row for row in found if told.labels.items() <= row["metric"].items()]
    assert fitting, found
    values = [float(value) for row in fitting for _, value in row["values"]]
    # 0/0 where nothing was read meanwhile
    assert max(value for value in values if not math.isnan(value)) >= told.least


def test_job_is_not_mixed_with_another(answers: Answers) -> None:
    query = 'count by (job_id) (diag_rank_info{job_id="$job_id"})'

    told = {job: {row["metric"]["job_id"] for row in answers.ask(query, job)} for job in answers.jobs}

    assert told == {job: {job} for job in answers.jobs}


def test_hang_is_in_no_panel_of_a_healthy_job(answers: Answers) -> None:
    hung = answers.ask('diag_rank_state{job_id="$job_id", state="hung"}', "saves")

    assert hung and {value for row in hung for _, value in row["values"]} == {"0"}
