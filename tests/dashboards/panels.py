"""One panel as the tables of boards.py say it, and the same as Grafana's, by grafana-foundation-sdk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

__all__ = ["DATASOURCE", "STATES", "Panel", "grafana_panel"]

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_HIDDEN = {"Time": True, "__name__": True, "instance": True, "job": True, "job_id": True, "Value": False}
STATES = (("starting", "blue"), ("running", "green"), ("checkpointing", "purple"), ("stalled", "yellow"),
          ("delaying", "orange"), ("hung", "red"), ("dead", "dark-red"), ("finished", "text"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` are (PromQL, legend). `explain` is the finding whose manual page tells more. `warn` and `bad`
    colour values: from there on, or, where `bad` is below `warn`, from there down."""

    kind: str  # lines, areas, stat, table, states, flags
    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    height: int = 7
    text: str = ""
    explain: str = ""
    warn: float | None = None
    bad: float | None = None
    lowest: float | None = 0
    highest: float | None = None
    to_rank: bool = False  # rows of a table lead to the rank's own dashboard

    @property
    def description(self) -> str:
        return f"{self.text} More: `diag explain {self.explain}`.".strip() if self.explain else self.text


def grafana_panel(panel: Panel, number: int) -> Any:
    """The SDK's builder of the panel."""
    builder: Any = {"lines": timeseries, "areas": timeseries, "stat": stat, "table": table, "states": statetimeline,
                    "flags": statetimeline}[panel.kind].Panel()  # fmt: skip
    instant = panel.kind in ("stat", "table")
    builder.id(number).title(panel.title).description(panel.description).unit(panel.unit).datasource(
        DATASOURCE
    )
    builder.span(panel.width).height(panel.height).thresholds(_thresholds(panel))
    for index, (expression, legend) in enumerate(panel.queries):
        query = (
            prometheus.Dataquery()
            .expr(expression)
            .legend_format(legend)
            .ref_id(chr(65 + index))
            .datasource(DATASOURCE)
        )
        query = (
            query.instant().format("table" if panel.kind == "table" else "time_series")
            if instant
            else query.range()
        )
        builder.with_target(query)
    if panel.explain:
        builder.links([_link(f"diag explain {panel.explain}", f"${{manual}}/{panel.explain}.md")])
    if panel.lowest is not None and not instant and panel.kind in ("lines", "areas"):
        builder.min(panel.lowest)
    if panel.highest is not None:
        builder.max(panel.highest)
    _look(builder, panel)
    return builder


def _look(builder: Any, panel: Panel) -> None:
    if panel.kind in ("lines", "areas"):
        legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST)
        builder.legend(legend.placement(common_models.LegendPlacement.BOTTOM).show_legend(True))
        builder.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
        builder.show_points(common_models.VisibilityMode.NEVER)
        builder.fill_opacity(60 if panel.kind == "areas" else 0)
    if panel.kind == "areas":
        builder.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
        for word, colour in STATES:
            builder.override_by_name(
                word, [models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})]
            )
    if panel.kind == "stat":
        builder.color_mode(common_models.BigValueColorMode.VALUE).graph_mode(
            common_models.BigValueGraphMode.NONE
        )
        builder.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if panel.kind == "states":
        builder.mappings(
            [_mapping({str(index + 1): state for index, state in enumerate(STATES)})]
        ).show_value(common_models.VisibilityMode.NEVER)
    if panel.kind == "flags":
        builder.mappings([_mapping({"1": ("open", "red")})]).show_value(common_models.VisibilityMode.NEVER)
    if panel.kind == "table":
        builder.with_transformation(models.DataTransformerConfig("organize", {"excludeByName": _HIDDEN}))
        if panel.to_rank:
            there = (
                "/d/diag-rank?${datasource:queryparam}&${job_id:queryparam}&var-node=${__data.fields.node}"
            )
            builder.data_links(
                [_link("this rank", there + "&var-rank=${__data.fields.rank}&${__url_time_range}")]
            )
        if any("kind" in expression for expression, _ in panel.queries):
            builder.data_links([_link("diag explain", "${manual}/${__data.fields.kind}.md")])


def _mapping(words: dict[str, tuple[str, str]]) -> models.ValueMap:
    return models.ValueMap(options={
        value: models.ValueMappingResult(text=word, color=colour, index=index)
        for index, (value, (word, colour)) in enumerate(words.items())
    })  # fmt: skip


def _link(title: str, url: str) -> Any:
    return boards.DashboardLink(title).url(url).type(models.DashboardLinkType.LINK).target_blank(True)


def _thresholds(panel: Panel) -> Any:
    if panel.bad is None:
        steps = [(None, "text" if panel.kind in ("stat", "table") else "green")]
    elif panel.warn is None or panel.warn == panel.bad:
        steps = [(None, "green"), (panel.bad, "red")]
    elif panel.warn < panel.bad:
        steps = [(None, "green"), (panel.warn, "orange"), (panel.bad, "red")]
    else:  # little is bad
        steps = [(None, "red"), (panel.bad, "orange"), (panel.warn, "green")]
    return (
        boards.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=colour) for value, colour in steps])
    )
