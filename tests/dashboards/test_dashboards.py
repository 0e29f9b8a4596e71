"""The committed dashboards are what boards.py says, ask only for what is exported, and lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from diag.outputs import manual
from diag.outputs.chinese.values import lost
from diag.outputs.prometheus.prometheus import METRICS
from tests.dashboards.boards import BOARDS, Board
from tests.dashboards.build import FOLDERS, document_of, main, text_of
from tests.dashboards.chinese import SUFFIX, in_chinese, said, texts, words
from tests.live.queries import check_names, inlined, metrics_of_recording_rules

DOCUMENTS: dict[str, Any] = {
    path.stem + (SUFFIX if lang == "zh" else ""): json.loads(path.read_text(encoding="utf-8"))
    for lang, folder in FOLDERS.items()
    for path in sorted(folder.glob("*.json"))
}
_CHINESE = re.compile("[\u4e00-\u9fff]")
# Names that are no words: of programs, of fields that a legend shows, of a command; "All" is Grafana's own.
_NAMES = re.compile(
    r"(?:\{\{\w+\}\}|Prometheus|All|diag|diag explain(?: [\w-]+)?|GPU|NCCL|Job hub|pids\.max|[,: ])+"
)
EXPRESSIONS = {
    target["expr"]
    for board in DOCUMENTS.values()
    for panel in board["panels"]
    for target in panel.get("targets", ())
}
each_document = pytest.mark.parametrize("uid", sorted(DOCUMENTS))


@pytest.mark.parametrize("lang", FOLDERS)
@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_file_is_what_the_generator_writes(board: Board, lang: str) -> None:
    kept = (FOLDERS[lang] / f"{board.uid}.json").read_text(encoding="utf-8")

    assert kept == text_of(board, lang), "make dashboards writes them anew"


def test_there_is_no_other_file() -> None:
    assert set(DOCUMENTS) == {board.uid + end for board in BOARDS for end in ("", SUFFIX)}


def test_generator_writes_the_language_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FOLDERS, "zh", tmp_path)
    monkeypatch.setattr("sys.argv", ["build", "--lang", "zh"])

    assert main() == 0
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(board.uid for board in BOARDS)


# --- in Chinese


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_every_text_of_a_dashboard_has_chinese(board: Board) -> None:
    shown = {text: said(text) for text in texts(document_of(board)) if text and not _NAMES.fullmatch(text)}

    assert {text for text in shown if not _CHINESE.search(words().get(text, shown[text]))} == {
        "Rank",
        "{{rank}} on {{node}}",
    } & {*shown}
    assert {text: lost(text, chinese) for text, chinese in shown.items() if lost(text, chinese)} == {}


def test_chinese_says_no_more_than_the_dashboards() -> None:
    english = {text for board in BOARDS for text in texts(document_of(board))}
    severities = {"critical", "warning", "info"}

    assert {text for text in words() if not any(text in one for one in english)} - severities == set()


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_chinese_dashboard_asks_the_same_and_leads_to_its_own_kind(board: Board) -> None:
    english, chinese = document_of(board), in_chinese(document_of(board))

    for one, other in zip(english["panels"], chinese["panels"], strict=True):
        asked = [[target["expr"] for target in panel.get("targets", ())] for panel in (one, other)]
        assert asked[0] == asked[1] and one["gridPos"] == other["gridPos"]
    assert (chinese["uid"], chinese["tags"]) == (board.uid + SUFFIX, ["diag" + SUFFIX])
    assert chinese["links"][0]["tags"] == ["diag" + SUFFIX]
    assert set(re.findall(r"/d/([\w-]+)", json.dumps(chinese))) <= {
        uid for uid in DOCUMENTS if uid.endswith(SUFFIX)
    }


def test_states_of_ranks_are_shown_in_chinese_and_keep_their_colours() -> None:
    panels = {panel["title"]: panel for panel in DOCUMENTS["diag-job" + SUFFIX]["panels"]}

    hung = next(
        one
        for one in panels["各状态的 rank 数"]["fieldConfig"]["overrides"]
        if one["matcher"]["options"] == "hung"
    )
    assert {one["id"]: one["value"] for one in hung["properties"]} == {
        "color": {"fixedColor": "red", "mode": "fixed"}, "displayName": "卡住"
    }  # fmt: skip
    mapped = panels["卡住或已死的 rank"]["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert mapped["hung"]["text"] == "卡住"


# --- both


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
        re.findall(r"`diag explain ([\w-]+)(?: --lang zh)?`", text)
    )
    assert linked <= set(DOCUMENTS)
    assert explained <= set(manual.ids()) and "${manual}/" in text
    pages = Path(manual.__file__).parent / ("zh" if uid.endswith(SUFFIX) else "en")
    assert all((pages / f"{kind}.md").is_file() for kind in explained)


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
