"""Writes dashboards/*.json, and dashboards/zh/*.json with the same panels in Chinese; `--lang en` or `--lang zh` only
these. `make dashboards` runs it, and then draws the pictures.

grafana-foundation-sdk has Grafana's own types; it writes schemaVersion 36 and cannot be told another, so that
the number is set here: 42 is the last one of this format (later changes are in the panels' own plugins), and
none of 37-42 concerns what is used.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from tests.dashboards.boards import BOARDS, Board
from tests.dashboards.chinese import in_chinese
from tests.dashboards.panels import DATASOURCE, grafana_panel

__all__ = ["FOLDERS", "document_of", "text_of"]

_FOLDER = Path(__file__).parents[2] / "dashboards"
FOLDERS = {"en": _FOLDER, "zh": _FOLDER / "zh"}
SCHEMA_VERSION = 42
_VARIABLES = {
    "node": 'label_values(diag_rank_info{job_id="$job_id"}, node)',
    "rank": 'label_values(diag_rank_info{job_id="$job_id", node=~"$node"}, rank)',
}


def text_of(board: Board, lang: str) -> str:
    """The dashboard as the file has it."""
    document = document_of(board)
    shown = in_chinese(document) if lang == "zh" else document
    return json.dumps(shown, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def document_of(board: Board) -> dict[str, Any]:
    """The dashboard in English, as Grafana's types write it."""
    builder = builders.Dashboard(board.title).uid(board.uid).description(board.text).tags(["diag"]).editable()
    builder.time("now-1h", "now").refresh("30s").timezone("browser").tooltip(
        models.DashboardCursorSync.CROSSHAIR
    )
    builder.with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    jobs = builders.QueryVariable("job_id").label("Job").query("label_values(diag_rank_info, job_id)")
    builder.with_variable(_renewed(jobs))
    for name in board.variables:
        variable = _renewed(
            builders.QueryVariable(name).label(name.capitalize()).query(_VARIABLES[name])
        ).multi(True)
        if name != "rank":  # all ranks of a large job are too many lines
            variable = variable.include_all(True).all_value(".*")
            variable = variable.current(models.VariableOption(text="All", value="$__all", selected=True))
        builder.with_variable(variable)
    builder.with_variable(
        builders.TextBoxVariable("manual").label("Manual pages at").default_value("http://localhost:8000")
    )
    builder.link(
        builders.DashboardLink("diag")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["diag"])
        .include_vars(True)
        .keep_time(True)
    )
    number = 0
    for title, panels in board.rows:
        number += 1
        builder.with_row(builders.Row(title).id(number))
        for panel in panels:
            number += 1
            builder.with_panel(grafana_panel(panel, number))
    made = builder.build()
    made.schema_version = SCHEMA_VERSION
    return {"id": None, **json.loads(json.dumps(made, cls=JSONEncoder))}


def _renewed(variable: Any) -> Any:
    return (
        variable.datasource(DATASOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(
            models.VariableSort.NATURAL_ASC
            if hasattr(models.VariableSort, "NATURAL_ASC")
            else models.VariableSort.NUMERICAL_ASC
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="write the dashboards")
    parser.add_argument("--lang", choices=tuple(FOLDERS), help="only those in this language (default: all)")
    lang = parser.parse_args().lang
    for each in (lang,) if lang else FOLDERS:
        for board in BOARDS:
            path = FOLDERS[each] / f"{board.uid}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text_of(board, each), encoding="utf-8")
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
