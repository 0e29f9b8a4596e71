"""The engine as Prometheus metrics: METRICS is the list of names (metrics.yaml), `families` reads the state,
`exposition` writes it.

Values that were read only; where nothing was read there is no sample. Nothing is registered process-wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client import metrics_core as core
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar, Sample

from diag.engine.engine import Engine
from diag.model import ChangeKind
from diag.outputs.prometheus.samples import samples
from diag.outputs.view.view import ClusterFacts, HubView
from diag.text.tables import load_table

_FAMILIES: dict[str, Callable[..., core.Metric]] = {
    "counter": core.CounterMetricFamily,
    "gauge": core.GaugeMetricFamily,
    "histogram": core.HistogramMetricFamily,
    "summary": core.SummaryMetricFamily,
}


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """`name` as it is exposed; `unit` is a base unit or empty; labels are `rank` and closed enums only."""

    name: str
    type: str
    unit: str
    labels: tuple[str, ...]
    help: str

    def family(self) -> core.Metric:
        if self.type == "info":
            return core.InfoMetricFamily(self.name.removesuffix("_info"), self.help, labels=self.labels)
        return _FAMILIES[self.type](self.name, self.help, labels=self.labels, unit=self.unit)


METRICS = tuple(
    MetricSpec(
        *(name, row.get("type", "gauge"), row.get("unit", "")),
        *(tuple(row.get("labels", "").split()), row["help"]),
    )
    for name, row in load_table(Path(__file__).parent / "metrics.yaml").items()
)
_SPECS = {spec.name: spec for spec in METRICS}


def families(view: HubView, cluster: ClusterFacts | None = None) -> list[core.Metric]:
    """Every metric that has a sample now. The caller holds the view's lock and owns the result.

    `cluster`: the view's facts of the cluster; without them they are asked for, which may wait for another
    lock.
    """
    made: dict[str, core.Metric] = {}
    exemplars = _exemplars(view.engine)
    for name, labels, value in samples(view, cluster or view.cluster.facts()):
        if value is None:
            continue
        spec = (
            _SPECS.get(name)
            or _SPECS[name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket")]
        )
        names = (*spec.labels, "le") if name.endswith("_bucket") else spec.labels
        family = made.get(spec.name)
        if family is None:
            family = made[spec.name] = spec.family()
        texts = dict(zip(names, map(_encodable, labels), strict=True))
        exemplar = exemplars.get(labels) if name == "diag_findings_total" else None
        family.samples.append(Sample(name, texts, float(value), None, exemplar))
    return [made[spec.name] for spec in METRICS if spec.name in made]


def _exemplars(engine: Engine) -> dict[tuple[object, ...], Exemplar]:
    """Of `diag_findings_total`, by its labels: the finding that opened last."""
    last: dict[tuple[object, ...], Exemplar] = {}
    for change in engine.history():
        if change.kind is ChangeKind.OPENED:
            finding = change.finding
            # An exemplar may have 128 characters of labels.
            name = _encodable(f"{finding.id}:{finding.subject}"[:100])
            last[(finding.id, finding.severity.value)] = Exemplar({"finding_id": name}, 1.0, change.at)
    return last


def _encodable(label: object) -> str:
    """Half of a surrogate pair may be in a name that a device, a journal or another node reported."""
    text = str(label)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def exposition(metrics: Iterable[core.Metric], accept: str = "") -> tuple[bytes, str]:
    """The text of metrics in the format that a scraper accepts, and its content type.

    >>> exposition([], "application/openmetrics-text; version=1.0.0")[0]
    b'# EOF\\n'
    """
    registry = CollectorRegistry()
    registry.register(_Taken(metrics))
    # Whoever names OpenMetrics can read it, whatever else it would take; only there exemplars have a place.
    if "application/openmetrics-text" in accept.lower():
        text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, eq=False)
class _Taken:
    """The collector of metrics that were made already."""

    metrics: Iterable[core.Metric]

    def collect(self) -> Iterable[core.Metric]:
        return self.metrics
