"""What a bundle may hold, name by name: a field that is added to one must be added here, and whoever does so
thinks of secrets.

A path is a member's name and the keys to a value. `[]` is any element of a list, `*` any one key, `**`
whatever is below: numbers, and text of the kernel's, of NCCL's or of diag's own, in a shape that depends on
the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

__all__ = ["ENVIRONMENT", "MEMBERS", "PATHS", "paths"]

MEMBERS = re.compile(
    r"manifest\.json|dump\.json|stacks\.txt|log\.txt|kernel\.txt|proc/rank\d{1,7}\.txt|journal-\d{6}\.jsonl\.gz"
)
# Families of launchers and communication libraries; of a family's secrets none.
ENVIRONMENT = re.compile(
    r"(?!.*(?:TOKEN|SECRET|PASSW|_PASS|_KEY|CREDENTIAL|AUTH|JWT))"
    r"(?:(?:NCCL|TORCH_NCCL|TORCH_FR|TORCHELASTIC|GLOO|OMP|CUDA|UCX|SLURM|PET|RDMAV|MLX[45]|IBV|FI|OFI|HCCL|RCCL)_\w+"
    r"|(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|NNODES|NPROC_PER_NODE|MASTER_(?:ADDR|PORT)|TORCH_DISTRIBUTED_DEBUG"
    r"|PYTORCH_(?:CUDA_)?ALLOC_CONF|MEGATRON_LM_PATH|ASCEND_RT_VISIBLE_DEVICES|KUBERNETES_SERVICE_HOST"
    r"|container|(?:APPTAINER|SINGULARITY)_NAME|TP_SOCKET_IFNAME|NVIDIA_VISIBLE_DEVICES|DIAG_FAULT|OMPI_COMM_WORLD_(?:RANK|SIZE))"
    r"|TOKENIZERS_PARALLELISM"
)

_MANIFEST = """schema run_id diag_version host at ranks missing.*[] kernel machine python_version argv[] world_size ranks_seen
 processes[].rank processes[].pid processes[].host processes[].alive processes[].environment.* versions.*.python versions.*.torch
 versions.*.nccl files[].name files[].bytes files[].sha256 left_out[]"""
_DUMP = """schema run_id diag_version host at seconds found next_command next_reason text missing.*[] versions.*.python
 versions.*.torch versions.*.nccl
 probes[].rank probes[].probe probes[].seconds probes[].paused_target probes[].ok probes[].reason probes[].reader
 classes[].activity classes[].at classes[].count classes[].frames[] classes[].kind classes[].path[] classes[].pids[]
 classes[].ranks[] classes[].reason classes[].role classes[].standing_steps classes[].stands_seconds classes[].thread classes[].title
 classes[].moving_ranks[] classes[].waits
 ranks[].activity ranks[].at ranks[].caller ranks[].caller.file ranks[].caller.function ranks[].caller.line ranks[].caller.text
 ranks[].own ranks[].own.file ranks[].own.function ranks[].own.line ranks[].own.text
 ranks[].where ranks[].where.file ranks[].where.function ranks[].where.line ranks[].where.text ranks[].children
 ranks[].context.** ranks[].context ranks[].cpu_ratio ranks[].exit ranks[].exit.** ranks[].host ranks[].limits ranks[].limits.*
 ranks[].local_rank ranks[].node_rank ranks[].open_files ranks[].peak_rss_bytes ranks[].phase ranks[].pid ranks[].process_state
 ranks[].progress_at ranks[].rank ranks[].rdma ranks[].rdma.** ranks[].rss_bytes ranks[].seconds_since_progress.*
 ranks[].seen_at ranks[].stack_at ranks[].stack_unchanged_seconds ranks[].state ranks[].threads ranks[].time_shares
 ranks[].time_shares.* report.schema report.job.* report.job.steps.** report.job.save.** report.findings[].*
 report.findings[].ranks[] report.findings[].waiting_ranks[] report.findings[].hosts[] report.findings[].evidence[].rank
 report.findings[].evidence[].at report.findings[].evidence[].kind report.findings[].evidence[].excerpt
 report.sentence report.sentence_times.** report.past[].** report.past_left_out report.next_command report.next_reason
 report.not_checked[].what report.not_checked[].reason report.not_checked[].remedy
 network.text[] network.interfaces[].** network.traffic network.traffic.** network.ports[].** network.gpus[].**
 network.devices[].**
 processes[].rank processes[].pid processes[].command processes[].status processes[].limits processes[].not_checked[]
 processes[].threads.count processes[].threads.listed[].tid processes[].threads.listed[].name processes[].threads.listed[].state
 processes[].threads.listed[].wchan processes[].threads.listed[].call processes[].open_files.count processes[].open_files.more.*
 processes[].open_files.listed[].fd processes[].open_files.listed[].to processes[].open_files.listed[].mode
 processes[].open_files.listed[].at processes[].open_files.listed[].socket processes[].memory_map.whole
 processes[].memory_map.bytes.* processes[].memory_map.libraries_left_out processes[].memory_map.libraries[].path
 processes[].memory_map.libraries[].bytes processes[].memory_map.libraries[].of npus.text[] npus.devices[].*
 pace.text[] pace.steps pace.steps.** pace.time_shares.* pace.sources[].* arrivals arrivals.**
 native[].rank native[].pid native[].seconds native[].reason native[].threads[].name native[].threads[].id
 native[].threads[].frames[] report.findings[].grounds[].*"""
# One line a record: what read it, of which rank, when, and what it read.
_RECORD = "source at emitted host rank schema segment policy"
_PAYLOADS = {
    "cgroup": "levels[].* meminfo missing overcommit pid pressure version view vmstat",
    "disk": "bavail bfree blocks favail ffree files frsize path purpose quota quota.** read_only type uid",
    "infiniband": "**", "interfaces": "**", "nvml": "**", "npu_smi": "text",
    "nccl_ras": "**", "flight_recorder": "**", "checkpoint": "**",
    "kmsg": "lines[]", "output": "lines[][] stream", "exits": "**", "faulthandler": "**", "pyspy": "**", "cuda_coredump": "**",
    "proc": """pauses tracer.comm tracer.pid beside[][] cap_eff fds hz io limits main_stat page pid rdma schedstat stat status uid_map
 wchan children[].** main_wchan""",
    "rdma_access": "cap_eff complete container.cgroup container.marks.* pid providers[] uid_map verbs[]",
    "variables": """pid parent_pid clocks.monotonic clocks.time threads[].id threads[].name threads[].frames[].function
 threads[].frames[].file threads[].frames[].line threads[].frames[].called threads[].frames[].values[][]""",
    "remote_stack": "codes[][] pid threads[].frames[] threads[].id threads[].name threads[].owns_gil threads[].exchange[]",
    "run": """argv[] command cwd distributed env.* event findings[][] machine path pid placement.* reason remedy seconds size_bytes
 source world_size""",
    "written": "pid files[].file files[].lines[] files[].written",
    "waits": "pid machine over_seconds ticks_per_second not_checked[] objects.** processes.**",
    "shm": "bavail blocks favail files frsize view",
}  # fmt: skip


def _pattern(path: str) -> str:
    return re.escape(path).replace(r"\*\*", r".*").replace(r"\*", r"[^.\[\]]+")


def _one(prefix: str, names: str) -> list[str]:
    return [_pattern(f"{prefix}.{name}") for name in names.split()]


PATHS = re.compile("|".join([
    *_one("manifest.json", _MANIFEST), *_one("dump.json", _DUMP), *_one("journal", _RECORD),
    *(each for source, names in _PAYLOADS.items() for each in _one(f"journal.{source}", names)),
]))  # fmt: skip


def paths(member: str, body: bytes) -> Iterator[str]:
    """Of all values in a member. Lines of the journal are told by what read them."""
    if not member.startswith("journal"):
        yield from _walk(json.loads(body), member)
        return
    for line in body.splitlines():
        record = json.loads(line)
        payload = record.pop("payload", None)
        yield from _walk(record, "journal")
        yield from _walk(payload or {}, f"journal.{record.get('source')}")


def _walk(value: object, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for item in value:
            yield from _walk(item, f"{path}[]")
    elif not isinstance(value, (dict, list)):
        yield path
