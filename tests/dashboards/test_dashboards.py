"""The committed dashboards are what boards.py says, ask only for what is exported, and lead somewhere."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from diag.outputs import manual
from diag.outputs.prometheus.prometheus import METRICS
from tests.dashboards.boards import BOARDS, Board
from tests.dashboards.build import FOLDER, text_of
from tests.live.queries import check_names, inlined, metrics_of_recording_rules

DOCUMENTS: dict[str, Any] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
EXPRESSIONS = {
    target["expr"]
    for board in DOCUMENTS.values()
    for panel in board["panels"]
    for target in panel.get("targets", ())
}
each_document = pytest.mark.parametrize("uid", sorted(DOCUMENTS))


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_file_is_what_the_generator_writes(board: Board) -> None:
    assert (FOLDER / f"{board.uid}.json").read_text() == text_of(board), "make dashboards writes them anew"


def test_there_is_no_other_file() -> None:
    assert set(DOCUMENTS) == {board.uid for board in BOARDS}


@each_document
def test_grafanas_own_types_read_and_write_the_file_without_loss(uid: str) -> None:
    document = DOCUMENTS[uid]

    read = models.Dashboard.from_json(document)
    again = json.loads(json.dumps(read, cls=JSONEncoder))

    assert {"id": None, **again} == document


@each_document
def test_panels_have_ids_of_their_own_and_do_not_overlap(uid: str) -> None:
    panels = DOCUMENTS[uid]["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@each_document
def test_dashboard_can_be_provisioned_anywhere(uid: str) -> None:
    document = DOCUMENTS[uid]
    variables = {variable["name"]: variable for variable in document["templating"]["list"]}
    real = [panel for panel in document["panels"] if panel["type"] != "row"]

    assert (document["id"], document["uid"], document["schemaVersion"]) == (None, uid, 42)
    assert variables["datasource"]["type"] == "datasource"
    for place in [*real, *(target for panel in real for target in panel["targets"]), variables["job_id"]]:
        assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in real)


@each_document
def test_variables_that_are_used_are_there(uid: str) -> None:
    document = DOCUMENTS[uid]
    named = {variable["name"] for variable in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(document["panels"])))

    assert used - named <= {"__rate_interval", "__data", "__url_time_range"}
    assert {"job_id", "datasource", "manual"} <= named & used


@pytest.mark.parametrize("expression", sorted(EXPRESSIONS))
def test_query_uses_only_metrics_and_labels_that_are_exported(expression: str) -> None:
    check_names(expression)

    assert expression.count('job_id="$job_id"') >= 1  # two jobs never mix


@each_document
def test_variables_take_their_values_from_labels_that_there_are(uid: str) -> None:
    for variable in DOCUMENTS[uid]["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            check_names(f"count by ({label}) ({series})")


@each_document
def test_links_lead_to_dashboards_and_manual_pages_that_there_are(uid: str) -> None:
    text = json.dumps(DOCUMENTS[uid])

    linked = set(re.findall(r"/d/([\w-]+)", text))
    explained = set(re.findall(r"\$\{manual\}/([\w-]+)\.md", text)) | set(
        re.findall(r"`diag explain ([\w-]+)`", text)
    )
    assert linked <= set(DOCUMENTS)
    assert explained <= set(manual.ids()) and "${manual}/" in text
    assert all(
        (FOLDER.parent / "diag" / "outputs" / "manual" / "en" / f"{kind}.md").is_file() for kind in explained
    )


def test_what_is_recorded_is_used() -> None:
    asked = set().union(*map(check_names, EXPRESSIONS))

    assert set(metrics_of_recording_rules()) <= asked


def test_every_metric_is_shown_somewhere() -> None:
    names = set().union(*(check_names(inlined(query)) for query in EXPRESSIONS))
    asked = {re.sub("_(sum|count|bucket)$", "", name) for name in names}

    assert {metric.name for metric in METRICS} - asked == set()


def test_a_made_up_metric_or_label_would_be_noticed() -> None:
    for wrong in (
        "diag_nonsense",
        'diag_rank_info{job_id="$job_id", colour="red"}',
        "sum by (colour) (diag_rank_info)",
    ):
        with pytest.raises(AssertionError):
            check_names(wrong)
