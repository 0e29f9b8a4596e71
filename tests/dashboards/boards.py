"""What the five dashboards show: rows of panels, each a few queries. `make dashboards` writes
dashboards/*.json of it.

A job of a thousand nodes has thousands of series: what is drawn over time is a sum or the worst of them, a
table names the worst twenty, and the rank drill-down draws single ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.dashboards.panels import Panel

__all__ = ["BOARDS", "Board"]

# What queries are limited to: the job, its chosen nodes, its chosen ranks.
J = 'job_id="$job_id"'
N = J + ', node=~"$node"'
R = N + ', rank=~"$rank"'


@dataclass(frozen=True, slots=True)
class Board:
    """`variables` beside datasource and job_id, which all have."""

    uid: str
    title: str
    text: str
    variables: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for _, panels in self.rows for panel in panels)


def ask(*words: str) -> tuple[tuple[str, str], ...]:
    """Queries, each with its legend behind it. {J}, {N} and {R} are the limits above, RATE is Grafana's
    interval.

    >>> ask("sum(diag_ib_port_up{J})", "up")
    (('sum(diag_ib_port_up{job_id="$job_id"})', 'up'),)
    """
    return tuple(
        (_filled(expression), legend) for expression, legend in zip(words[::2], words[1::2], strict=True)
    )


def _filled(expression: str) -> str:
    for short, whole in (("{J", "{" + J), ("{N", "{" + N), ("{R", "{" + R), ("[RATE]", "[$__rate_interval]")):
        expression = expression.replace(short, whole)
    return expression


def states() -> str:
    """A rank's state as a number: 1 starting, 2 running, ... as panels.py maps it back."""
    words = ("starting", "running", "checkpointing", "stalled", "delaying", "hung", "dead", "finished")
    told = (f'{index} * diag_rank_state{{{R}, state="{word}"}}' for index, word in enumerate(words, 1))
    return f"sum by (node, rank) ({' or '.join(told)})"


JOB = Board(
    "diag-job", "diag: job overview", "One training job over all its nodes: does it move, who holds it up, what was found.", (),
    (
        ("Now", (
            Panel("stat", "Ranks", ask("count(diag_rank_info{J})", "ranks"), width=3, height=4),
            Panel("stat", "Ranks that hang",
                  ask('sum(job_id_state:diag_rank_state:sum{J, state=~"hung|delaying"})', "hung"), width=3, height=4,
                  explain="hang", bad=1, text="Culprits only, also those that hold the others up for now: who waits for them is "
                  "`stalled`."),
            Panel("stat", "Ranks that died",
                  ask('sum(job_id_state:diag_rank_state:sum{J, state="dead"})', "dead"), width=3, height=4,
                  explain="rank-died", bad=1),
            Panel("stat", "Iteration", ask("max(diag_train_iteration{J})", "iteration"), width=3, height=4),
            Panel("stat", "A step takes", ask("max(diag_train_step_seconds{J})", "step"), "s", width=3, height=4,
                  explain="throughput-drop", text="Median of the last minute."),
            Panel("stat", "Nothing has moved for", ask("time() - max(diag_last_progress_timestamp_seconds{J})", "still"), "s",
                  width=3, height=4, explain="hang", warn=30, bad=60, text="Of the rank that moved last, on any channel."),
            Panel("stat", "Nodes told of", ask("count(count by (node) (diag_build_info{J}))", "nodes"), width=3, height=4,
                  text="Nodes whose diag Prometheus reaches."),
            Panel("stat", "Nodes missing",
                  ask("max(diag_nodes_expected{J} - diag_nodes_heard{J} and on (job_id, node, instance) diag_job_hub{J} "
                  "== 1)", "missing"), width=3, height=4, explain="node-failure", bad=1,
                  text="Of those that the launcher announced, as the job hub sees it. Empty on one node."),
        )),
        ("What is wrong", (
            Panel("table", "Findings open now",
                  ask("count by (kind, severity) (count by (node, kind, severity) (diag_finding_active{J} == 1))", ""), width=12,
                  text="The value counts nodes. /findings of the hub has evidence and advice."),
            Panel("table", "Findings of the whole job", ask("max by (kind, severity) (diag_job_finding_active{J} == 1)", ""),
                  width=12, text="What the job hub sees over all nodes. Empty on one node."),
            Panel("table", "Ranks that hang or died",
                  ask('topk(20, diag_rank_state{J, state=~"hung|delaying|dead"} == 1)', ""), width=12,
                  explain="hang", to_rank=True),
            Panel("table", "Ranks that stand longest", ask("topk(20, time() - diag_last_progress_timestamp_seconds{J})", ""), "s",
                  width=12, to_rank=True, text="Seconds since anything of the rank moved."),
            Panel("flags", "Findings over time", ask("max by (kind) (diag_finding_active{J})", "{{kind}}"), width=24),
        )),
        ("Progress", (
            Panel("areas", "Ranks by state", ask("sum by (state) (job_id_state:diag_rank_state:sum{J})", "{{state}}")),
            Panel("lines", "Iteration",
                  ask("max(diag_train_iteration{J})", "furthest node", "min(diag_train_iteration{J})", "last node")),
            Panel("lines", "Time since a rank moved", ask("time() - min(diag_last_progress_timestamp_seconds{J})",
                  "stands longest", "time() - max(diag_last_progress_timestamp_seconds{J})", "moved last"), "s", explain="hang"),
            Panel("lines", "Time of a step", ask("max(diag_train_step_seconds{J})", "median of the last minute"), "s",
                  explain="throughput-drop"),
            Panel("lines", "Samples a second", ask("max(diag_train_samples_per_second{J})", "whole job")),
            Panel("lines", "Ranks that save", ask("sum(diag_checkpoint_in_progress{J})", "ranks in a save")),
        )),
        ("GPUs of the job", (
            Panel("lines", "Utilisation",
                  ask("avg(diag_gpu_utilization_ratio{J})", "mean", "min(diag_gpu_utilization_ratio{J})", "least busy GPU"),
                  "percentunit", highest=1, text="As the driver tells it: a kernel that waits in NCCL counts as busy."),
            Panel("lines", "Power of all GPUs", ask("sum(diag_gpu_power_watts{J})", "all"), "watt"),
            Panel("lines", "Fullest GPU memory",
                  ask("max(job_id_node:diag_gpu_memory_used_ratio:max{J})", "fullest"), "percentunit",
                  explain="cuda-oom", highest=1),
        )),
    ),
)  # fmt: skip

RANK = Board(
    "diag-rank", "diag: ranks", "Single ranks side by side: state, where they stand, process and GPU.", ("node", "rank"),
    (
        ("State", (
            Panel("states", "State", ((states(), "{{rank}} on {{node}}"),), width=24, explain="hang", lowest=None),
            Panel("lines", "Time since it moved", ask("time() - diag_last_progress_timestamp_seconds{R}", "{{rank}}"), "s",
                  explain="hang", text="On any channel: stack, CPU, I/O, its children."),
            Panel("lines", "Same place in the code for", ask("diag_stack_unchanged_seconds{R}", "{{rank}}"), "s", explain="hang",
                  text="By the stack samples of the main thread."),
            Panel("lines", "Last heard of", ask("time() - diag_heartbeat_timestamp_seconds{R}", "{{rank}}"), "s",
                  text="More than some seconds: its sidecar does not report, or the clocks differ."),
            Panel("table", "Findings that name it", ask('diag_finding_active{R, rank!=""} == 1', ""), width=12),
            Panel("table", "Where it runs", ask("diag_rank_info{R}", ""), width=12,
                  text="gpu_uuid and pci_bus_id join it to other exporters, such as DCGM's."),
        )),
        ("Process", (
            Panel("lines", "Resident memory", ask("diag_process_resident_memory_bytes{R}", "{{rank}}"), "bytes",
                  explain="host-oom"),
            Panel("lines", "Pinned memory", ask("diag_process_pinned_memory_bytes{R}", "{{rank}}"), "bytes"),
            Panel("flags", "In a save", ask("diag_checkpoint_in_progress{R}", "{{rank}}")),
            Panel("table", "Limit of locked memory", ask("diag_rlimit_memlock_bytes{R}", ""), "bytes", explain="memlock-limit",
                  text="RDMA needs it unlimited (+Inf)."),
            Panel("table", "RDMA devices held open", ask("diag_rank_rdma_open{R}", ""), explain="ib-fallback"),
            Panel("table", "Network that NCCL took", ask("diag_nccl_net_info{R}", ""), explain="ib-fallback"),
        )),
        ("GPU", (
            Panel("lines", "Utilisation", ask("diag_gpu_utilization_ratio{R}", "{{rank}}"), "percentunit", highest=1),
            Panel("lines", "Memory in use",
                  ask("diag_gpu_memory_used_bytes{R}", "{{rank}}", "max(diag_gpu_memory_total_bytes{R})", "size"), "bytes",
                  explain="cuda-oom"),
            Panel("lines", "Power", ask("diag_gpu_power_watts{R}", "{{rank}}"), "watt", explain="power-brake"),
            Panel("lines", "SM clock", ask("diag_gpu_sm_clock_hertz{R}", "{{rank}}"), "hertz", explain="thermal-throttle"),
            Panel("lines", "Temperature", ask("diag_gpu_temperature_celsius{R}", "{{rank}}",
                  "diag_gpu_memory_temperature_celsius{R}", "{{rank}}, memory"), "celsius", explain="thermal-throttle"),
            Panel("flags", "Clocks held back",
                  ask('max by (rank, reason) (diag_gpu_throttled{R, reason!="power_cap"})', "{{rank}}: {{reason}}"),
                  explain="thermal-throttle", text="Not by the power cap, which is normal at full load."),
            Panel("lines", "Time with clocks held back",
                  ask("rate(diag_gpu_throttled_seconds_total{R}[RATE])", "{{rank}}: {{reason}}"), "percentunit",
                  explain="thermal-throttle"),
            Panel("table", "Memory errors", ask("diag_gpu_ecc_errors_total{R}", ""), explain="ecc-error",
                  text="Since the driver was loaded."),
            Panel("table", "Faults (Xid)", ask("diag_gpu_xid_total{R}", ""), explain="gpu-fault"),
            Panel("table", "Row waits to be mapped out", ask("diag_gpu_row_remap_pending{R} == 1", ""), width=12,
                  explain="ecc-error"),
            Panel("table", "NVLinks up", ask("diag_gpu_nvlinks_up{R}", ""), width=12, explain="nvlink-fault"),
        )),
    ),
)  # fmt: skip

NETWORK = Board(
    "diag-network", "diag: network", "What NCCL goes over, the RDMA ports, traffic of the nodes.", ("node",),
    (
        ("NCCL", (
            Panel("stat", "Ranks not on the network that they should use",
                  ask("count(diag_nccl_fallback{N} == 1) or 0 * count(diag_build_info{N})", "ranks"), width=6, height=4,
                  explain="ib-fallback", bad=1),
            Panel("stat", "Mixed networks in one communicator", ask("max(diag_nccl_transport_mismatch{N})", "mixed"), width=6,
                  height=4, explain="transport-mismatch", bad=1),
            Panel("stat", "Warnings of NCCL", ask("sum(diag_nccl_warnings_total{N})", "warnings"), width=6, height=4, warn=1,
                  bad=100),
            Panel("stat", "Longest start of communicators", ask("max(diag_nccl_init_seconds_total{N})", "slowest rank"), "s",
                  width=6, height=4, text="NCCL 2.21 and later."),
            Panel("table", "Networks in use", ask("count by (net, gdr) (diag_nccl_net_info{N})", ""), width=12,
                  explain="ib-fallback", text="The value counts ranks. gdr: GPU memory is reached directly."),
            Panel("table", "Why not RDMA", ask("count by (cause, node) (diag_nccl_fallback{N} == 1)", ""), width=12,
                  explain="ib-fallback", text="The value counts ranks."),
        )),
        ("RDMA ports", (
            Panel("stat", "Ports up", ask("sum(diag_ib_port_up{N})", "up"), width=6, explain="ib-port"),
            Panel("table", "Ports that are down", ask("diag_ib_port_up{N} == 0", ""), width=9, explain="ib-port",
                  text="Those that were never used too."),
            Panel("table", "Links that went down", ask("topk(20, diag_ib_link_downed_total{N} > 0)", ""), width=9,
                  explain="ib-port", text="Since the driver was loaded."),
            Panel("lines", "Busiest port, of its speed",
                  ask("max(job_id_node:diag_net_transmit_used_ratio:max{N})", "sent"), "percentunit"),
            Panel("table", "Speed of ports", ask("min by (device, port) (diag_ib_port_rate_bytes_per_second{N})", ""), "Bps",
                  text="The slowest of all nodes: one that came up at a lower speed slows all."),
            Panel("lines", "Ports up", ask("sum(diag_ib_port_up{N})", "up"), explain="ib-port"),
        )),
        ("Traffic", (
            Panel("lines", "Sent",
                  ask("sum by (transport) (job_id_node_transport:diag_net_transmit_bytes:rate5m{N})", "{{transport}}"),
                  "Bps", width=12, text="ib: RDMA ports. ipoib is in ib too."),
            Panel("lines", "Received",
                  ask("sum by (transport) (job_id_node_transport:diag_net_receive_bytes:rate5m{N})", "{{transport}}"),
                  "Bps", width=12),
            Panel("table", "Least sent, by node",
                  ask("bottomk(20, sum by (node) (rate(diag_net_transmit_bytes_total{N}[RATE])))", ""), "Bps", width=12),
            Panel("lines", "From node to job hub and back",
                  ask("max(diag_link_round_trip_seconds{N})", "slowest node", "avg(diag_link_round_trip_seconds{N})", "mean"),
                  "s", width=12, explain="node-failure", text="Of diag's own digests. Empty on one node."),
        )),
    ),
)  # fmt: skip

MEMORY = Board(
    "diag-memory", "diag: memory and save", "Host memory against its limits, and what checkpoints need and take.", ("node",),
    (
        ("Now", (
            Panel("stat", "Fullest memory cgroup",
                  ask("max(diag_cgroup_memory_usage_bytes{N} / diag_cgroup_memory_limit_bytes{N})", "fullest"), "percentunit",
                  width=4, height=4, explain="host-oom", warn=0.85, bad=0.95),
            Panel("stat", "Room that the next save leaves", ask("min(diag_checkpoint_forecast_headroom_bytes{N})", "least"),
                  "bytes", width=4, height=4, explain="host-oom-forecast", warn=1073741824, bad=0,
                  text="Below 0 it will not fit."),
            Panel("stat", "OOM kills", ask("sum(diag_cgroup_oom_kills_total{N})", "kills"), width=4, height=4, explain="host-oom",
                  bad=1),
            Panel("stat", "Least free in /dev/shm", ask("min(diag_shm_available_bytes{N} / diag_shm_size_bytes{N})", "free"),
                  "percentunit", width=4, height=4, explain="shm-too-small", warn=0.3, bad=0.1),
            Panel("stat", "Newest checkpoint", ask("max(diag_checkpoint_size_bytes{N})", "size"), "bytes", width=4, height=4),
            Panel("stat", "Free where it saves", ask('min(diag_disk_available_bytes{N, purpose="save"})', "free"), "bytes",
                  width=4, height=4, explain="disk-full"),
        )),
        ("Host memory", (
            Panel("lines", "Fullest memory cgroup", ask("max(diag_cgroup_memory_usage_bytes{N})", "usage",
                  "max(diag_cgroup_memory_peak_bytes{N})", "peak", "min(diag_cgroup_memory_limit_bytes{N})", "lowest limit"),
                  "bytes", explain="host-oom"),
            Panel("lines", "What the next save needs", ask("max(diag_checkpoint_forecast_peak_bytes{N})", "expected peak",
                  "min(diag_checkpoint_forecast_headroom_bytes{N})", "least room left"), "bytes", explain="host-oom-forecast",
                  lowest=None),
            Panel("lines", "Host memory available", ask("min(diag_host_memory_available_bytes{N})", "least",
                  "max(diag_host_memory_total_bytes{N})", "size of the largest"), "bytes", explain="host-oom"),
            Panel("lines", "Waited for memory", ask("max(diag_memory_pressure_stalled_ratio{N})", "worst node"), "percentunit",
                  text="Share of the last 10 s in which all tasks waited."),
            Panel("lines", "Resident memory of ranks", ask("max(diag_process_resident_memory_bytes{N})", "largest rank",
                  "max(sum by (node) (diag_process_resident_memory_bytes{N}))", "all ranks of a node, most"), "bytes",
                  explain="host-oom"),
            Panel("table", "Fullest nodes",
                  ask("topk(20, diag_cgroup_memory_usage_bytes{N} / diag_cgroup_memory_limit_bytes{N})", ""), "percentunit",
                  explain="host-oom"),
            Panel("table", "Largest ranks", ask("topk(20, diag_process_resident_memory_bytes{N})", ""), "bytes", to_rank=True),
            Panel("lines", "Free in /dev/shm",
                  ask("min(diag_shm_available_bytes{N})", "least free", "min(diag_shm_size_bytes{N})", "smallest size"), "bytes",
                  explain="shm-too-small"),
            Panel("lines", "Processes of the fullest cgroup", ask("max(diag_cgroup_processes{N})", "processes and threads",
                  "min(diag_cgroup_processes_limit{N})", "pids.max"), explain="pids-limit"),
        )),
        ("Save", (
            Panel("lines", "Ranks that save", ask("sum(diag_checkpoint_in_progress{N})", "ranks in a save")),
            Panel("stat", "A save takes",
                  ask("histogram_quantile(0.5, sum by (le) (diag_checkpoint_save_duration_seconds_bucket{N}))", "median of all",
                  "sum(diag_checkpoint_save_duration_seconds_sum{N}) / sum("
                  "diag_checkpoint_save_duration_seconds_count{N})", "mean of all"), "s", text="Since the run began."),
            Panel("stat", "Saves finished", ask("max(diag_checkpoint_save_duration_seconds_count{N})", "saves")),
            Panel("lines", "Size of the checkpoint", ask("max(diag_checkpoint_size_bytes{N})", "newest"), "bytes",
                  explain="checkpoint-write-error"),
            Panel("lines", "Free disk space",
                  ask("min by (purpose) (job_id_node_purpose:diag_disk_available_ratio:min{N})", "{{purpose}}"), "percentunit",
                  explain="disk-full", highest=1),
            Panel("table", "Disks with least space",
                  ask("bottomk(20, diag_disk_available_bytes{N} / diag_disk_size_bytes{N})", ""), "percentunit",
                  explain="disk-full"),
        )),
    ),
)  # fmt: skip

AGENT = Board(
    "diag-agent", "diag: diag itself", "What diag costs, whether it sees all, and what it could not read.", ("node",),
    (
        ("Now", (
            Panel("stat", "Nodes that answer", ask('sum(up{N, job=~".*diag.*"})', "up"), width=4, height=4),
            Panel("stat", "Nodes that do not", ask('count(up{N, job=~".*diag.*"}) - sum(up{N, job=~".*diag.*"})', "down"),
                  width=4, height=4, bad=1),
            Panel("stat", "CPU of diag, mean of nodes",
                  ask("avg(sum by (node) (rate(diag_agent_cpu_seconds_total{N}[RATE])))", "cores"), "percentunit", width=4,
                  height=4, text="1 is one core, sidecars included."),
            Panel("stat", "Memory of diag, most of a node",
                  ask("max(sum by (node) (diag_agent_resident_memory_bytes{N}))", "memory"), "bytes", width=4, height=4),
            Panel("stat", "Oldest word of a rank",
                  ask("time() - min(diag_heartbeat_timestamp_seconds{N} unless on (job_id, node, instance, rank) "
                  'diag_rank_state{N, state=~"dead|finished"} == 1)', "oldest"), "s", width=4, height=4, warn=60, bad=120),
            Panel("stat", "Job hub", ask("sum(diag_job_hub{N})", "hubs that judge the job"), width=4, height=4,
                  text="1 in a job of several nodes. Empty on one node."),
        )),
        ("Cost", (
            Panel("lines", "CPU of diag",
                  ask("avg by (process) (job_id_node_process:diag_agent_cpu_seconds:rate5m{N})", "{{process}}, of a node"),
                  "percentunit", text="1 is one core; mean of the nodes."),
            Panel("lines", "Memory of diag",
                  ask("max by (process) (job_id_node_process:diag_agent_resident_memory_bytes:sum{N})",
                  "{{process}}, most of a node"), "bytes"),
            Panel("lines", "Journal", ask("sum(rate(diag_journal_bytes_total{N}[RATE]))", "written"), "Bps"),
            Panel("table", "Nodes with most CPU of diag",
                  ask("topk(20, sum by (node) (rate(diag_agent_cpu_seconds_total{N}[RATE])))", ""), "percentunit"),
            Panel("table", "Versions", ask("count by (version) (diag_build_info{N})", ""), text="The value counts nodes."),
            Panel("lines", "Readings taken in", ask("sum(rate(diag_records_total{N}[RATE]))", "all nodes")),
        )),
        ("What it reads", (
            Panel("lines", "Time of a reading",
                  ask("avg by (sampler) (job_id_sampler:diag_sampler_duration_seconds:mean5m{J} >= 0)", "{{sampler}}"), "s",
                  text="Mean of all nodes."),
            Panel("table", "Readings that failed", ask("sum by (sampler, reason) (diag_sampler_errors_total{N})", ""),
                  text="Since the run began. What could not be looked at is under `not checked` in /findings."),
            Panel("lines", "Lines of the job's output", ask("sum(rate(diag_log_lines_total{N}[RATE]))", "read",
                  "sum(rate(diag_log_lines_dropped_total{N}[RATE]))", "cut or left unread")),
            Panel("lines", "Digests between nodes",
                  ask("sum by (direction, result) (rate(diag_digests_total{N}[RATE]))", "{{direction}}, {{result}}"), width=12,
                  text="Empty on one node."),
            Panel("lines", "Bytes of digests",
                  ask("sum by (direction) (rate(diag_digest_bytes_total{N}[RATE]))", "{{direction}}"), "Bps", width=12,
                  text="Empty on one node."),
            Panel("table", "Findings opened", ask("sum by (kind, severity) (diag_findings_total{N})", ""), width=24,
                  text="Since the run began, all nodes together."),
        )),
    ),
)  # fmt: skip

BOARDS = (JOB, RANK, NETWORK, MEMORY, AGENT)
