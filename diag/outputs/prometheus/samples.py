"""What a hub knows, as samples of Prometheus: (name of the metric, values of its labels, value).

A value of None was not read and has no sample; `prometheus.families` drops it and makes text of the labels. The
caller holds the view's lock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from diag.detectors.memory.forecast import estimated
from diag.engine.engine import Engine
from diag.model.observations import GpuHealth, GpuSample
from diag.outputs.view.view import (
    RANK_STATES,
    ClusterFacts,
    HubView,
    heartbeat,
    is_saving,
    rank_state,
    rank_states,
)
from diag.state.gpustate import gpus_of_ranks, rank_of_bus
from diag.state.rank_view import RankView
from diag.state.saves import SAVE_SECONDS
from diag.state.traffic import port_bytes
from diag.state.view import JobView

HubSample = tuple[str, tuple[object, ...], float | None]

_MOST_RANKS = 256  # of one finding as series; a finding with more ranks counts as one about the job
_LONGEST_NET = 64  # characters of a network's name: plugins choose it
_TRANSPORTS = {"ethernet": "eth", "infiniband": "ipoib"}
# nvml.h, nvmlClocksEventReason*
_REASONS = {"power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal": 0x20, "hw_thermal": 0x40, "power_brake": 0x80}


def samples(view: HubView, cluster: ClusterFacts | None) -> Iterator[HubSample]:
    """Of everything; `cluster` is None where this hub has not joined others."""
    engine, job = view.engine, view.engine.job
    gpus = gpus_of_ranks(job)
    yield "diag_build_info", (view.version,), 1
    yield from _ranks(engine, gpus)
    yield from _gpus(job, gpus)
    yield from _memory(engine)
    yield from _checkpoints(job)
    yield from network_samples(job)
    yield from _nccl(engine)
    if cluster is not None:
        yield from _cluster(cluster)
    yield from _findings(engine, elsewhere=cluster is not None and not cluster.is_job_hub)
    yield from _agent(view)


def _ranks(engine: Engine, gpus: Mapping[int, GpuSample]) -> Iterator[HubSample]:
    named = rank_states(engine)
    for number, rank in sorted(engine.job.ranks.items()):
        gpu = gpus.get(number)
        place = (gpu.uuid, gpu.pci_bus_id) if gpu else ("", "")
        yield "diag_rank_info", (number, rank.placement.local_rank, *place), 1
        current = rank_state(engine, rank, named)
        for state in RANK_STATES:
            yield "diag_rank_state", (number, state), state == current
        yield "diag_heartbeat_timestamp_seconds", (number,), heartbeat(rank)
        yield "diag_last_progress_timestamp_seconds", (number,), rank.last_moved() or None
        if rank.alive:
            yield from _living_rank(engine, rank)
    steps = engine.job.progress.steps
    yield "diag_train_iteration", ("",), engine.job.iteration
    yield "diag_train_step_seconds", ("",), steps.now()
    yield "diag_train_samples_per_second", ("",), steps.samples_per_second()


def _living_rank(engine: Engine, rank: RankView) -> Iterator[HubSample]:
    label = (rank.rank,)
    if rank.stack is not None:
        yield "diag_stack_unchanged_seconds", label, rank.stack_at - rank.stack_since
    yield "diag_checkpoint_in_progress", label, is_saving(engine, rank)
    if rank.tree is not None:
        yield "diag_process_resident_memory_bytes", label, rank.tree.main.rss_bytes
        yield "diag_process_pinned_memory_bytes", label, rank.tree.pinned_bytes
    soft = dict(rank.limits.soft) if rank.limits else {}
    if "Max locked memory" in soft:
        yield "diag_rlimit_memlock_bytes", label, _or_infinite(soft["Max locked memory"])
    if rank.rdma is not None and rank.rdma.open_nodes is not None:
        held = sum(node.startswith("uverbs") for node in rank.rdma.open_nodes)
        yield "diag_rank_rdma_open", label, held


def _gpus(job: JobView, gpus: Mapping[int, GpuSample]) -> Iterator[HubSample]:
    for rank, gpu in sorted(gpus.items()):
        if job.ranks[rank].alive:
            yield "diag_gpu_utilization_ratio", (rank,), gpu.utilization_ratio
            yield "diag_gpu_memory_used_bytes", (rank,), gpu.memory_used_bytes
            yield "diag_gpu_memory_total_bytes", (rank,), gpu.memory_total_bytes
            yield "diag_gpu_power_watts", (rank,), gpu.power_watts
            yield "diag_gpu_temperature_celsius", (rank,), gpu.temperature_celsius
            yield "diag_gpu_sm_clock_hertz", (rank,), gpu.sm_clock_hertz
            if gpu.throttle_reasons is not None:
                for reason, bit in _REASONS.items():
                    yield "diag_gpu_throttled", (rank, reason), bool(gpu.throttle_reasons & bit)
        if gpu.index in job.machine.gpu_health:
            yield from _gpu_health(rank, job.machine.gpu_health[gpu.index][1])
    faults: Counter[tuple[int, int]] = Counter()
    for event in job.gpu_faults.xids:
        users = set(rank_of_bus(event.fact.pci_bus_id, job))
        users.update(rank for pid in event.pids for rank in [job.ranks.rank_of_pid(pid)] if rank is not None)
        faults.update((rank, event.xid) for rank in users if event.last_at >= job.ranks[rank].found_at)
    for fault, count in sorted(faults.items()):
        yield "diag_gpu_xid_total", fault, count


def _gpu_health(rank: int, health: GpuHealth) -> Iterator[HubSample]:
    yield "diag_gpu_throttled_seconds_total", (rank, "thermal"), health.thermal_violation_seconds
    yield "diag_gpu_throttled_seconds_total", (rank, "power"), health.power_violation_seconds
    yield "diag_gpu_ecc_errors_total", (rank, "corrected"), health.ecc_corrected_volatile
    yield "diag_gpu_ecc_errors_total", (rank, "uncorrected"), health.ecc_uncorrected_volatile
    yield "diag_gpu_row_remap_pending", (rank,), health.remap_pending
    if health.nvlinks:
        yield "diag_gpu_nvlinks_up", (rank,), sum(bool(link.active) for link in health.nvlinks)
    yield "diag_gpu_memory_temperature_celsius", (rank,), health.memory_celsius


def _memory(engine: Engine) -> Iterator[HubSample]:
    ranks, host = engine.job.ranks.values(), engine.job.machine.host_memory
    shms = [rank.shm for rank in ranks if rank.shm is not None]
    if shms:
        tightest = min(shms, key=lambda shm: shm.available_bytes)
        yield "diag_shm_size_bytes", (), tightest.size_bytes
        yield "diag_shm_available_bytes", (), tightest.available_bytes
    pids = [rank.pids for rank in ranks if rank.pids is not None]
    if pids:
        fullest = max(pids, key=lambda one: one.current / _or_infinite(one.limit or None))
        yield "diag_cgroup_processes", (), fullest.current
        yield "diag_cgroup_processes_limit", (), _or_infinite(fullest.limit)
    groups = {
        (rank.placement.host, rank.cgroup.path): rank.cgroup for rank in ranks if rank.cgroup is not None
    }
    ratios = [rank.cgroup.pressure_full_ratio for rank in ranks if rank.cgroup]
    if host is not None:
        yield "diag_host_memory_available_bytes", (), host.available_bytes
        yield "diag_host_memory_total_bytes", (), host.total_bytes
    of_host = host.pressure_full_ratio if host is not None else None
    stalled = max((ratio for ratio in ratios if ratio is not None), default=of_host)
    yield "diag_memory_pressure_stalled_ratio", (), stalled
    if groups:
        group = max(
            groups.values(), key=lambda each: each.usage_bytes / _or_infinite(each.limit_bytes or None)
        )
        yield "diag_cgroup_memory_usage_bytes", (), group.usage_bytes
        yield "diag_cgroup_memory_limit_bytes", (), _or_infinite(group.limit_bytes)
        yield "diag_cgroup_memory_peak_bytes", (), group.peak_bytes
        yield "diag_cgroup_oom_kills_total", (), sum(each.oom_kills for each in groups.values())
    outlook = engine.job.saves.memory.outlook(engine.now, engine.job.run.words, estimated(engine.job))
    if outlook is not None:
        yield "diag_checkpoint_forecast_peak_bytes", (), outlook[1].peak
        yield "diag_checkpoint_forecast_headroom_bytes", (), outlook[1].limit - outlook[1].peak


def _or_infinite(value: int | None) -> float:
    return math.inf if value is None else value


def _checkpoints(job: JobView) -> Iterator[HubSample]:
    counts, total = job.saves.log.histogram()
    name = "diag_checkpoint_save_duration_seconds"
    for bound, count in zip((*SAVE_SECONDS, "+Inf"), counts, strict=True):
        yield f"{name}_bucket", (bound,), count
    yield f"{name}_sum", (), total
    yield f"{name}_count", (), counts[-1]
    folders = [folder for seen in job.saves.folders.values() for folder in seen.folders]
    if folders:
        newest = max(folders, key=lambda folder: folder.changed_at)
        yield "diag_checkpoint_size_bytes", (), newest.size_bytes
    tightest: dict[str, tuple[int, int]] = {}
    for _, space in job.machine.disks.values():
        quota = space.available_bytes if space.quota_bytes is None else space.quota_bytes
        disk = min(space.available_bytes, quota), space.total_bytes
        if space.purpose in ("save", "tmp", "run_dir"):
            tightest[space.purpose] = min(tightest.get(space.purpose, disk), disk)
    for purpose, (free, size) in sorted(tightest.items()):
        yield "diag_disk_size_bytes", (purpose,), size
        yield "diag_disk_available_bytes", (purpose,), free


def network_samples(job: JobView) -> Iterator[HubSample]:
    totals: Counter[tuple[str, str, str]] = Counter()
    for port in job.network.ports.last[1].ports if job.network.ports.last is not None else ():
        label = (port.device, port.port)
        yield "diag_ib_port_up", label, None if port.state is None else port.active
        yield "diag_ib_link_downed_total", label, dict(port.counters).get("link_downed")
        yield "diag_ib_port_rate_bytes_per_second", label, port.rate_bytes_per_second
        for direction, count in zip(("transmit", "receive"), port_bytes(port), strict=True):
            if count is not None:
                totals[direction, port.device, "ib"] += count
    for one in job.network.interfaces.last[1].interfaces if job.network.interfaces.last is not None else ():
        if one.carries and one.kind != "loopback":
            transport = _TRANSPORTS.get(one.kind, "eth")
            totals["transmit", one.name, transport] = one.sent_bytes
            totals["receive", one.name, transport] = one.received_bytes
    for (direction, device, transport), count in totals.items():
        yield f"diag_net_{direction}_bytes_total", (device, transport), count


def _nccl(engine: Engine) -> Iterator[HubSample]:
    processes = engine.job.nccl_processes
    for rank, process in sorted(processes.placed().items()):
        for net in sorted(process.nets_between_nodes()):
            direct = process.channels.get((net, True), 0)
            known = direct or process.channels.get((net, False), 0)
            yield (
                "diag_nccl_net_info",
                (rank, net[:_LONGEST_NET], str(bool(direct)).lower() if known else ""),
                1,
            )
        yield "diag_nccl_warnings_total", (rank,), process.warnings_total
        yield "diag_nccl_init_seconds_total", (rank,), process.init_seconds or None
    active = engine.active()
    for finding in active:
        if finding.id == "ib-fallback" and finding.severity.counts:
            for rank in finding.ranks:
                yield "diag_nccl_fallback", (rank, finding.cause), 1
    if processes.by_pid:
        differ = any(finding.id == "transport-mismatch" for finding in active)
        yield "diag_nccl_transport_mismatch", (), differ


def _cluster(facts: ClusterFacts) -> Iterator[HubSample]:
    yield "diag_job_hub", (), facts.is_job_hub
    if facts.is_job_hub:
        yield "diag_nodes_expected", (), facts.expected
        yield "diag_nodes_heard", (), facts.heard
        for finding, count in Counter(facts.findings).items():
            yield "diag_job_finding_active", finding, count
    for exchange, count in facts.digests.items():
        yield "diag_digests_total", exchange, count
    for direction, size in facts.digest_bytes.items():
        yield "diag_digest_bytes_total", (direction,), size
    yield "diag_link_round_trip_seconds", (), facts.round_trip


def _findings(engine: Engine, *, elsewhere: bool) -> Iterator[HubSample]:
    """Each finding is exported once in the job: by its own node, and one about the whole job by the job hub."""
    active = {
        (finding.id, finding.severity.value, rank)
        for finding in engine.active()
        if not finding.reported_by or not (elsewhere or finding.hosts)
        for rank in (map(str, finding.ranks) if 0 < len(finding.ranks) <= _MOST_RANKS else ("",))
    }
    for key in sorted(active):
        yield "diag_finding_active", key, 1
    for opened, times in sorted(engine.opened_total.items()):
        yield "diag_findings_total", opened, times


def _agent(view: HubView) -> Iterator[HubSample]:
    counters = view.counters
    for sampler, taken in sorted(counters.sampler_seconds.items()):
        yield "diag_sampler_duration_seconds_count", (sampler,), taken.count
        yield "diag_sampler_duration_seconds_sum", (sampler,), taken.seconds
    for failed, times in sorted(counters.sampler_errors.items()):
        yield "diag_sampler_errors_total", failed, times
    yield "diag_log_lines_total", (), counters.log_lines_total
    yield "diag_log_lines_dropped_total", (), counters.log_lines_dropped_total
    yield "diag_records_total", (), counters.records_total
    yield "diag_journal_bytes_total", (), counters.journal_bytes_total
    for (process, rank), cost in sorted(counters.processes.items(), key=str):
        label = (process, "" if rank is None else rank)
        yield "diag_agent_cpu_seconds_total", label, cost.cpu_seconds
        yield "diag_agent_resident_memory_bytes", label, cost.rss_bytes
