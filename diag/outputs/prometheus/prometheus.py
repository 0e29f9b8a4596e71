"""The engine as Prometheus metrics: METRICS is the list of names, `families` reads the state, `exposition`
writes it.

Told values only; where nothing was read there is no sample. Nothing is registered process-wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar, Sample

from diag.detectors.memory.forecast import estimated
from diag.engine.engine import Engine
from diag.model import ChangeKind
from diag.model.observations import GpuSample
from diag.outputs.prometheus.checkpoint_metrics import CHECKPOINT_METRICS, checkpoint_samples
from diag.outputs.prometheus.cluster_metrics import CLUSTER_METRICS, cluster_samples
from diag.outputs.prometheus.gpu_metrics import GPU_METRICS, gpu_samples
from diag.outputs.prometheus.nccl_metrics import NCCL_METRICS, nccl_samples
from diag.outputs.prometheus.network_metrics import NETWORK_METRICS, network_samples
from diag.outputs.view.view import (
    RANK_STATES,
    ClusterFacts,
    HubView,
    culprits_and_waiting,
    heartbeat,
    is_saving,
    rank_state,
)
from diag.state.gpustate import gpus_of_ranks
from diag.state.rank_view import RankView


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """`name` as it is exposed; `unit` is a base unit or empty; labels are `rank` and closed enums only."""

    name: str
    type: str
    unit: str
    labels: tuple[str, ...]
    help: str

    def family(self) -> Metric:
        if self.type == "counter":
            return CounterMetricFamily(self.name, self.help, labels=self.labels, unit=self.unit)
        if self.type == "info":
            return InfoMetricFamily(self.name.removesuffix("_info"), self.help, labels=self.labels)
        if self.type == "histogram":
            return HistogramMetricFamily(self.name, self.help, labels=self.labels, unit=self.unit)
        if self.type == "summary":
            return SummaryMetricFamily(self.name, self.help, labels=self.labels, unit=self.unit)
        return GaugeMetricFamily(self.name, self.help, labels=self.labels, unit=self.unit)


# rank_state is a gauge and no OpenMetrics stateset: that type would force the label's name to be the
# metric's.
METRICS: tuple[MetricSpec, ...] = tuple(
    MetricSpec(name, kind, unit, tuple(labels.split()), text)
    for name, kind, unit, labels, text in (
        ("diag_build_info", "info", "", "version", "Version of diag; always 1."),
        (
            "diag_rank_info",
            "info",
            "",
            "rank local_rank gpu_uuid pci_bus_id",
            "Where a rank runs; always 1. Joins a rank to the GPU labels of other exporters; empty where not known.",
        ),
        (
            "diag_rank_state",
            "gauge",
            "",
            "rank state",
            "1 for the state a rank is in, 0 for the others: " + ", ".join(RANK_STATES) + ".",
        ),
        (
            "diag_heartbeat_timestamp_seconds",
            "gauge",
            "seconds",
            "rank",
            "When anything was last heard of a rank.",
        ),
        (
            "diag_last_progress_timestamp_seconds",
            "gauge",
            "seconds",
            "rank",
            "When a rank last moved on any channel (stack, CPU, I/O, its children).",
        ),
        (
            "diag_train_iteration",
            "gauge",
            "",
            "rank",
            "Last training iteration that was reported; rank is empty where the log tells it for the whole job.",
        ),
        (
            "diag_train_step_seconds",
            "gauge",
            "seconds",
            "rank",
            "Seconds that a training step takes now: the median of the last minute, without saves, evaluations and stops; rank is "
            "empty.",
        ),
        (
            "diag_train_samples_per_second",
            "gauge",
            "",
            "rank",
            "Samples that the job trains on in a second, where the log tells the global batch size; rank is empty.",
        ),
        (
            "diag_stack_unchanged_seconds",
            "gauge",
            "seconds",
            "rank",
            "For how long every stack sample of the main thread showed the same place.",
        ),
        ("diag_checkpoint_in_progress", "gauge", "", "rank", "1 while a rank saves a checkpoint."),
        (
            "diag_gpu_utilization_ratio",
            "gauge",
            "ratio",
            "rank",
            "Utilisation of the rank's GPU as the driver tells it (a kernel that waits in NCCL counts as busy).",
        ),
        (
            "diag_gpu_memory_used_bytes",
            "gauge",
            "bytes",
            "rank",
            "Memory in use on the rank's GPU, by all processes.",
        ),
        ("diag_gpu_memory_total_bytes", "gauge", "bytes", "rank", "Memory of the rank's GPU."),
        ("diag_gpu_power_watts", "gauge", "watts", "rank", "Power draw of the rank's GPU."),
        ("diag_gpu_temperature_celsius", "gauge", "celsius", "rank", "Temperature of the rank's GPU."),
        ("diag_gpu_sm_clock_hertz", "gauge", "hertz", "rank", "SM clock of the rank's GPU."),
        *GPU_METRICS,
        (
            "diag_process_resident_memory_bytes",
            "gauge",
            "bytes",
            "rank",
            "Resident memory of the rank's process.",
        ),
        (
            "diag_process_pinned_memory_bytes",
            "gauge",
            "bytes",
            "rank",
            "Pinned memory of the rank's process.",
        ),
        (
            "diag_rlimit_memlock_bytes",
            "gauge",
            "bytes",
            "rank",
            "Soft limit of locked memory; +Inf is unlimited.",
        ),
        (
            "diag_rank_rdma_open",
            "gauge",
            "",
            "rank",
            "RDMA devices (uverbs) that the rank's process holds open; no sample where that may not be looked at.",
        ),
        *CHECKPOINT_METRICS,
        *NETWORK_METRICS,
        *NCCL_METRICS,
        *CLUSTER_METRICS,
        ("diag_shm_size_bytes", "gauge", "bytes", "", "Size of /dev/shm, the tightest that a rank sees."),
        ("diag_shm_available_bytes", "gauge", "bytes", "", "Free space in the same /dev/shm."),
        (
            "diag_cgroup_memory_usage_bytes",
            "gauge",
            "bytes",
            "",
            "Memory of the fullest cgroup of the ranks.",
        ),
        (
            "diag_cgroup_memory_limit_bytes",
            "gauge",
            "bytes",
            "",
            "Limit of the same cgroup; +Inf is unlimited.",
        ),
        ("diag_cgroup_memory_peak_bytes", "gauge", "bytes", "", "Peak of the same cgroup."),
        (
            "diag_cgroup_processes",
            "gauge",
            "",
            "",
            "Processes and threads of the cgroup that has least room for more.",
        ),
        ("diag_cgroup_processes_limit", "gauge", "", "", "pids.max of the same cgroup; +Inf is unlimited."),
        (
            "diag_memory_pressure_stalled_ratio",
            "gauge",
            "ratio",
            "",
            "Share of the last 10 s in which all tasks waited for memory: of the worst cgroup of the ranks, of the host with v1.",
        ),
        ("diag_host_memory_available_bytes", "gauge", "bytes", "", "MemAvailable of the host."),
        ("diag_host_memory_total_bytes", "gauge", "bytes", "", "MemTotal of the host."),
        (
            "diag_cgroup_oom_kills_total",
            "counter",
            "",
            "",
            "Processes killed in these cgroups for want of memory.",
        ),
        (
            "diag_checkpoint_forecast_peak_bytes",
            "gauge",
            "bytes",
            "",
            "Host memory that the next save, or the one that runs, is expected to need at most, page cache not counted.",
        ),
        (
            "diag_checkpoint_forecast_headroom_bytes",
            "gauge",
            "bytes",
            "",
            "What its limit will leave beside that; below 0 the save will not fit. No sample before anything is known of saves.",
        ),
        (
            "diag_finding_active",
            "gauge",
            "",
            "kind severity rank",
            "1 while a finding is open, per culprit rank; rank is empty for findings about the job or a node.",
        ),
        ("diag_findings_total", "counter", "", "kind severity", "Findings opened since the run began."),
        ("diag_sampler_duration_seconds", "summary", "seconds", "sampler", "Time that diag's readings took."),
        ("diag_sampler_errors_total", "counter", "", "sampler reason", "Readings of diag that failed."),
        ("diag_log_lines_total", "counter", "", "", "Lines of the job's output that were read."),
        (
            "diag_log_lines_dropped_total",
            "counter",
            "",
            "",
            "Lines of the job's output that were cut or left unread.",
        ),
        ("diag_records_total", "counter", "", "", "Readings taken in by the hub."),
        ("diag_journal_bytes_total", "counter", "bytes", "", "Bytes written to the run's journal."),
        (
            "diag_agent_cpu_seconds_total",
            "counter",
            "seconds",
            "process rank",
            "CPU time of diag itself; process is hub or sidecar.",
        ),
        (
            "diag_agent_resident_memory_bytes",
            "gauge",
            "bytes",
            "process rank",
            "Resident memory of diag itself; process is hub or sidecar.",
        ),
    )
)

_SPECS = {spec.name: spec for spec in METRICS}


class HubCollector:
    """A prometheus_client collector over a view, for any registry."""

    def __init__(self, view: HubView) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        return [spec.family() for spec in METRICS]

    def collect(self) -> Iterable[Metric]:
        with self._view.lock:
            return families(self._view)


def families(view: HubView, cluster: ClusterFacts | None = None) -> list[Metric]:
    """Every metric that has a sample now. The caller holds the view's lock; what it gets is its own.

    `cluster`: the view's facts of the cluster; without them they are asked for, which may wait for another
    lock.
    """
    made: dict[str, Metric] = {}
    for name, labels, value, exemplar in _samples(view, cluster or view.cluster.facts()):
        spec = (
            _SPECS.get(name)
            or _SPECS[name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket")]
        )
        names = (*spec.labels, "le") if name.endswith("_bucket") else spec.labels
        family = made.get(spec.name)
        if family is None:
            family = made[spec.name] = spec.family()
        family.samples.append(Sample(name, dict(zip(names, labels, strict=True)), value, None, exemplar))
    return [made[spec.name] for spec in METRICS if spec.name in made]


def exposition(metrics: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
    """The text of metrics in the format that a scraper accepts, and its content type.

    >>> exposition([], "application/openmetrics-text; version=1.0.0")[0]
    b'# EOF\\n'
    """
    metrics = list(metrics)
    try:
        return _exposition(metrics, accept)
    except UnicodeEncodeError:  # half of a surrogate pair in a name that another node, or a journal, told
        return _exposition([_with_encodable_labels(metric) for metric in metrics], accept)


def _exposition(metrics: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    # Whoever names OpenMetrics can read it, whatever else it would take; only there exemplars have a place.
    if "application/openmetrics-text" in accept.lower():
        text: bytes = openmetrics.generate_latest(_registry(metrics))  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(_registry(metrics)), "text/plain; version=0.0.4; charset=utf-8"


def _with_encodable_labels(metric: Metric) -> Metric:
    metric.samples = [
        sample._replace(labels={name: _encodable(value) for name, value in sample.labels.items()})
        for sample in metric.samples
    ]
    return metric


class _Taken:
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _registry(metrics: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Taken(metrics))
    return registry


_Sample = tuple[str, Sequence[str], float, Exemplar | None]


def _samples(view: HubView, cluster: ClusterFacts | None) -> Iterator[_Sample]:
    gpus = gpus_of_ranks(view.engine.job)
    yield ("diag_build_info", (_encodable(view.version),), 1, None)
    yield from _ranks(view.engine, gpus)
    yield from _gpus(view.engine, gpus)
    yield from gpu_samples(view.engine.job)
    yield from _memory(view.engine)
    yield from checkpoint_samples(view.engine.job)
    yield from network_samples(view.engine.job)
    yield from nccl_samples(view.engine)
    yield from cluster_samples(cluster)
    yield from _findings(view.engine, elsewhere=cluster is not None and not cluster.is_job_hub)
    yield from _agent(view)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _ranks(engine: Engine, gpus: Mapping[int, GpuSample]) -> Iterator[_Sample]:
    culprits, waiting = culprits_and_waiting(engine)
    for number, rank in sorted(engine.job.ranks.items()):
        label = (str(number),)
        gpu = gpus.get(number)
        where = (gpu.uuid, gpu.pci_bus_id) if gpu else ("", "")
        yield ("diag_rank_info", (*label, str(rank.placement.local_rank), *where), 1, None)
        state = rank_state(engine, rank, culprits, waiting)
        for word in RANK_STATES:
            yield ("diag_rank_state", (*label, word), float(word == state), None)
        yield ("diag_heartbeat_timestamp_seconds", label, heartbeat(rank), None)
        if rank.last_moved():
            yield ("diag_last_progress_timestamp_seconds", label, rank.last_moved(), None)
        if rank.alive:
            yield from _living_rank(engine, rank, label)
    if engine.job.iteration is not None:
        yield ("diag_train_iteration", ("",), engine.job.iteration, None)
    for name, value in (
        ("diag_train_step_seconds", engine.job.progress.steps.now()),
        ("diag_train_samples_per_second", engine.job.progress.steps.samples_per_second()),
    ):
        if value is not None:
            yield (name, ("",), value, None)


def _living_rank(engine: Engine, rank: RankView, label: tuple[str]) -> Iterator[_Sample]:
    if rank.stack is not None:
        yield ("diag_stack_unchanged_seconds", label, rank.stack_at - rank.stack_since, None)
    yield ("diag_checkpoint_in_progress", label, float(is_saving(engine, rank)), None)
    if rank.tree is not None:
        yield ("diag_process_resident_memory_bytes", label, rank.tree.main.rss_bytes, None)
        if rank.tree.pinned_bytes is not None:
            yield ("diag_process_pinned_memory_bytes", label, rank.tree.pinned_bytes, None)
    soft = dict(rank.limits.soft) if rank.limits else {}
    if "Max locked memory" in soft:
        yield ("diag_rlimit_memlock_bytes", label, _or_infinite(soft["Max locked memory"]), None)
    if rank.rdma is not None and rank.rdma.open_nodes is not None:
        yield (
            "diag_rank_rdma_open",
            label,
            sum(node.startswith("uverbs") for node in rank.rdma.open_nodes),
            None,
        )


def _gpus(engine: Engine, gpus: Mapping[int, GpuSample]) -> Iterator[_Sample]:
    for number, gpu in sorted(gpus.items()):
        if not engine.job.ranks[number].alive:
            continue
        for name, value in (
            ("diag_gpu_utilization_ratio", gpu.utilization_ratio),
            ("diag_gpu_memory_used_bytes", gpu.memory_used_bytes),
            ("diag_gpu_memory_total_bytes", gpu.memory_total_bytes),
            ("diag_gpu_power_watts", gpu.power_watts),
            ("diag_gpu_temperature_celsius", gpu.temperature_celsius),
            ("diag_gpu_sm_clock_hertz", gpu.sm_clock_hertz),
        ):
            if value is not None:
                yield (name, (str(number),), value, None)


def _memory(engine: Engine) -> Iterator[_Sample]:
    ranks = engine.job.ranks.values()
    shms = [rank.shm for rank in ranks if rank.shm is not None]
    if shms:
        tightest = min(shms, key=lambda shm: shm.available_bytes)
        yield ("diag_shm_size_bytes", (), tightest.size_bytes, None)
        yield ("diag_shm_available_bytes", (), tightest.available_bytes, None)
    yield from _pressure(engine)
    groups = {
        (rank.placement.host, rank.cgroup.path): rank.cgroup for rank in ranks if rank.cgroup is not None
    }
    if groups:
        fullest = max(
            groups.values(), key=lambda group: group.usage_bytes / _or_infinite(group.limit_bytes or None)
        )
        yield ("diag_cgroup_memory_usage_bytes", (), fullest.usage_bytes, None)
        yield ("diag_cgroup_memory_limit_bytes", (), _or_infinite(fullest.limit_bytes), None)
        if fullest.peak_bytes is not None:
            yield ("diag_cgroup_memory_peak_bytes", (), fullest.peak_bytes, None)
        yield ("diag_cgroup_oom_kills_total", (), sum(group.oom_kills for group in groups.values()), None)
    told = engine.job.saves.memory.outlook(engine.now, engine.job.run.words, estimated(engine.job))
    if told is not None:
        yield ("diag_checkpoint_forecast_peak_bytes", (), told[1].peak, None)
        yield ("diag_checkpoint_forecast_headroom_bytes", (), told[1].limit - told[1].peak, None)


def _pressure(engine: Engine) -> Iterator[_Sample]:
    ranks, host = engine.job.ranks.values(), engine.job.machine.host_memory
    pids = [rank.pids for rank in ranks if rank.pids is not None]
    if pids:
        fullest = max(pids, key=lambda one: one.current / _or_infinite(one.limit or None))
        yield ("diag_cgroup_processes", (), fullest.current, None)
        yield ("diag_cgroup_processes_limit", (), _or_infinite(fullest.limit), None)
    ratios = [
        rank.cgroup.pressure_full_ratio
        for rank in ranks
        if rank.cgroup and rank.cgroup.pressure_full_ratio is not None
    ]
    if not ratios and host is not None and host.pressure_full_ratio is not None:
        ratios = [host.pressure_full_ratio]
    if ratios:
        yield ("diag_memory_pressure_stalled_ratio", (), max(ratios), None)
    if host is not None:
        yield ("diag_host_memory_available_bytes", (), host.available_bytes, None)
        yield ("diag_host_memory_total_bytes", (), host.total_bytes, None)


_MOST_RANKS = 256  # of one finding as series; of more it is about the job


def _or_infinite(value: int | None) -> float:
    return math.inf if value is None else value


def _findings(engine: Engine, *, elsewhere: bool) -> Iterator[_Sample]:
    """Each finding is exported once in the job: by its own node, and what is said of the whole job by the job
    hub."""
    active = {
        (finding.id, finding.severity.value, rank)
        for finding in engine.active()
        if not finding.reported_by or not (elsewhere or finding.hosts)
        for rank in (map(str, finding.ranks) if 0 < len(finding.ranks) <= _MOST_RANKS else ("",))
    }
    for key in sorted(active):
        yield ("diag_finding_active", key, 1, None)
    last: dict[tuple[str, str], Exemplar] = {}
    for change in engine.history():
        if change.kind is ChangeKind.OPENED:
            finding = change.finding
            # An exemplar may have 128 characters of labels.
            name = _encodable(f"{finding.id}:{finding.subject}"[:100])
            last[(finding.id, finding.severity.value)] = Exemplar({"finding_id": name}, 1.0, change.at)
    for opened, times in sorted(engine.opened_total.items()):
        yield ("diag_findings_total", opened, times, last.get(opened))


def _agent(view: HubView) -> Iterator[_Sample]:
    counters = view.counters
    for sampler, taken in sorted(counters.sampler_seconds.items()):
        yield ("diag_sampler_duration_seconds_count", (sampler,), taken.count, None)
        yield ("diag_sampler_duration_seconds_sum", (sampler,), taken.seconds, None)
    for failed, times in sorted(counters.sampler_errors.items()):
        yield ("diag_sampler_errors_total", failed, times, None)
    yield ("diag_log_lines_total", (), counters.log_lines_total, None)
    yield ("diag_log_lines_dropped_total", (), counters.log_lines_dropped_total, None)
    yield ("diag_records_total", (), counters.records_total, None)
    yield ("diag_journal_bytes_total", (), counters.journal_bytes_total, None)
    for (process, rank), cost in sorted(counters.processes.items(), key=str):
        who = (process, "" if rank is None else str(rank))
        yield ("diag_agent_cpu_seconds_total", who, cost.cpu_seconds, None)
        yield ("diag_agent_resident_memory_bytes", who, cost.rss_bytes, None)
