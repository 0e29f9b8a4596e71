from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from diag.model.observations import (
    CgroupPids,
    DiskSpace,
    GpuHealth,
    GpuSample,
    HostMemory,
    Iteration,
    LimitsSeen,
    NvlinkSeen,
    RankExited,
    RdmaAccess,
    SaveFinished,
    SaveStarted,
    XidReported,
)
from diag.outputs.prometheus.prometheus import METRICS, exposition, families
from diag.outputs.view.view import RANK_STATES

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def samples(hub: Any) -> dict[tuple[str, ...], float]:
    """{(name, label=value, ...): value} of the plain text."""
    text = exposition(families(hub))[0].decode()
    return {
        (
            sample.name,
            *(f"{key}={value}" for key, value in sorted(sample.labels.items()) if value),
        ): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def test_each_rank_is_in_exactly_one_state(hung: Any) -> None:
    told = samples(hung)

    active = [key[1:] for key, value in told.items() if key[0] == "diag_rank_state" and value == 1]
    assert sorted(active) == [
        ("rank=0", "state=stalled"),
        ("rank=1", "state=stalled"),
        ("rank=2", "state=stalled"),
        ("rank=3", "state=hung"),
    ]


def test_finding_is_active_for_the_culprit_only(hung: Any) -> None:
    told = samples(hung)

    active = [key for key in told if key[0] == "diag_finding_active"]
    assert active == [("diag_finding_active", "kind=hang", "rank=3", "severity=critical")]
    assert told[("diag_findings_total", "kind=hang", "severity=critical")] == 1


def test_finding_about_the_job_has_an_empty_rank(hub: Any, kit: Any) -> None:
    hub.says.findings = [kit.finding(id="host-oom", ranks=(), waiting_ranks=())]
    hub.engine.advance(1040.0)

    assert samples(hub)[("diag_finding_active", "kind=host-oom", "severity=critical")] == 1


def test_two_findings_of_one_kind_on_one_rank_are_one_series(hub: Any, kit: Any) -> None:
    hub.says.findings = [kit.finding(subject="a"), kit.finding(subject="b")]
    hub.engine.advance(1040.0)

    active = [key for key in samples(hub) if key[0] == "diag_finding_active"]
    assert len(active) == 1


def test_resolved_finding_is_no_longer_active_but_stays_counted(hung: Any) -> None:
    hung.says.findings = []
    hung.engine.advance(1050.0)

    told = samples(hung)
    assert not [key for key in told if key[0] == "diag_finding_active"]
    assert told[("diag_findings_total", "kind=hang", "severity=critical")] == 1


def test_values_of_a_rank(hung: Any) -> None:
    told = samples(hung)

    assert told[("diag_process_resident_memory_bytes", "rank=3")] == 4 * 2**30
    assert told[("diag_rlimit_memlock_bytes", "rank=3")] == 65536
    assert told[("diag_stack_unchanged_seconds", "rank=3")] == 30
    assert told[("diag_gpu_utilization_ratio", "rank=3")] == 0
    assert (
        told[("diag_rank_info", "gpu_uuid=GPU-3", "local_rank=3", "pci_bus_id=0000:03:00.0", "rank=3")] == 1
    )
    assert told[("diag_shm_available_bytes",)] == 60 * 2**20
    assert told[("diag_cgroup_memory_limit_bytes",)] == 64 * 2**30
    assert told[("diag_sampler_errors_total", "reason=denied", "sampler=pyspy")] == 1
    assert told[("diag_sampler_duration_seconds_sum", "sampler=pyspy")] == 0.25
    assert told[("diag_agent_resident_memory_bytes", "process=sidecar", "rank=0")] == 20 * 2**20


def test_unlimited_is_infinite(empty: Any, kit: Any) -> None:
    empty.tell(1.0, kit.found(0, 1), LimitsSeen(0, 750, (("Max locked memory", None),)))

    assert samples(empty)[("diag_rlimit_memlock_bytes", "rank=0")] == float("inf")


def test_devices_that_a_rank_holds_are_counted_and_unknown_is_no_zero(empty: Any, kit: Any) -> None:
    held = ("rdma_cm", "uverbs0", "uverbs1")
    empty.tell(1.0, *(kit.found(rank, 3) for rank in range(3)))
    for rank, nodes in enumerate((held, (), None)):
        pid = empty.engine.job.ranks[rank].placement.pid
        empty.tell(2.0, RdmaAccess(rank, pid, None, nodes, None, None, None, None))

    told = samples(empty)

    assert told[("diag_rank_rdma_open", "rank=0")] == 2 and told[("diag_rank_rdma_open", "rank=1")] == 0
    assert ("diag_rank_rdma_open", "rank=2") not in told


def test_what_was_not_read_has_no_sample(empty: Any, kit: Any) -> None:
    empty.tell(1.0, kit.found(0, 1))

    names = {key[0] for key in samples(empty)}
    assert not [
        name for name in names if "gpu_" in name or "shm" in name or "cgroup" in name or "rlimit" in name
    ]


def test_dead_rank_keeps_its_state_and_loses_its_memory(hung: Any, kit: Any) -> None:
    hung.tell(1041.0, RankExited(3, 753, None, 9, "pidfd"))

    told = samples(hung)
    assert told[("diag_rank_state", "rank=3", "state=dead")] == 1
    assert ("diag_process_resident_memory_bytes", "rank=3") not in told


def test_iteration_of_the_log_belongs_to_no_rank(hub: Any, kit: Any) -> None:
    hub.tell(1036.0, Iteration(None, 12, 100, "12/100"))

    assert samples(hub)[("diag_train_iteration",)] == 12


def test_saves_are_a_histogram_and_disks_say_what_is_free(hub: Any) -> None:
    hub.tell(1036.0, Iteration(None, 12, 100, "12/100"))
    for began, ended in ((1037.0, 1041.0), (1050.0, 1130.0)):
        hub.tell(began, SaveStarted(None, "saving", "/save"))
        hub.tell(ended, SaveFinished(None, "saved", "/save"), Iteration(None, int(ended), 9999, "it"))
    hub.tell(1131.0, DiskSpace(None, "/save", "save", 1000, 400, quota_bytes=300))

    told = samples(hub)
    name = "diag_checkpoint_save_duration_seconds"
    assert [told[(f"{name}_bucket", f"le={bound}")] for bound in ("2.0", "5.0", "60.0", "120.0", "+Inf")] == [
        0,
        1,
        1,
        2,
        2,
    ]
    assert (told[(f"{name}_sum",)], told[(f"{name}_count",)]) == (84, 2)
    assert (
        told[("diag_disk_available_bytes", "purpose=save")],
        told[("diag_disk_size_bytes", "purpose=save")],
    ) == (300, 1000)


def gpu(index: int, pids: tuple[int, ...]) -> tuple[Any, ...]:
    return (None, index, f"GPU-{index}", "", "H200", 0.5, 1, 2, 3.0, 4.0, 5, 6.0, None, pids)


def test_gpus_whose_processes_are_hidden_go_by_position(empty: Any, kit: Any) -> None:
    empty.tell(1.0, kit.found(0, 2), kit.found(1, 2), *(GpuSample(*gpu(index, ())) for index in range(2)))

    assert ("diag_gpu_utilization_ratio", "rank=1") in samples(empty)


def test_health_of_a_ranks_gpu_is_told(empty: Any, kit: Any) -> None:
    links = (NvlinkSeen(0, True), NvlinkSeen(1, False))
    health = GpuHealth(
        None,
        0,
        "GPU-0",
        "00000000:00:06.0",
        ecc_corrected_volatile=3,
        ecc_uncorrected_volatile=0,
        remap_pending=True,
        thermal_violation_seconds=2.5,
        power_violation_seconds=0.0,
        memory_celsius=61.0,
        nvlinks=links,
    )
    sample = replace(GpuSample(*gpu(0, (750,))), pci_bus_id="00000000:00:06.0", throttle_reasons=0x44)
    faults = [XidReported(None, "0000:00:06", number, None, "NVRM: Xid") for number in (13, 13, 43)]
    empty.tell(1.0, kit.found(0, 1), sample, health, *faults)

    told = samples(empty)

    assert told[("diag_gpu_xid_total", "rank=0", "xid=13")] == 1  # twice within 10 s is one
    assert told[("diag_gpu_xid_total", "rank=0", "xid=43")] == 1
    assert told[("diag_gpu_throttled", "rank=0", "reason=hw_thermal")] == 1
    assert told[("diag_gpu_throttled", "rank=0", "reason=power_cap")] == 1
    assert told[("diag_gpu_throttled", "rank=0", "reason=power_brake")] == 0
    assert told[("diag_gpu_throttled_seconds_total", "rank=0", "reason=thermal")] == 2.5
    assert told[("diag_gpu_ecc_errors_total", "kind=corrected", "rank=0")] == 3
    assert told[("diag_gpu_row_remap_pending", "rank=0")] == 1
    assert told[("diag_gpu_nvlinks_up", "rank=0")] == 1
    assert told[("diag_gpu_memory_temperature_celsius", "rank=0")] == 61


def test_gpus_are_not_given_away_by_position_when_the_job_uses_some_of_them(empty: Any, kit: Any) -> None:
    empty.tell(1.0, kit.found(0, 1), *(GpuSample(*gpu(index, ())) for index in range(8)))

    assert not [key for key in samples(empty) if key[0].startswith("diag_gpu")]


def test_every_exposed_sample_is_in_the_table_with_its_labels(hung: Any) -> None:
    table = {spec.name: spec for spec in METRICS}
    for name, *labels in samples(hung):
        spec = table.get(name) or table[re.sub("_(sum|count|bucket)$", "", name)]
        assert {label.partition("=")[0] for label in labels} <= {
            *spec.labels,
            *(["le"] if name.endswith("_bucket") else []),
        }


def test_table_keeps_to_the_conventions() -> None:
    for spec in METRICS:
        assert re.fullmatch("diag_[a-z0-9_]+", spec.name)
        assert spec.name.endswith("_total") == (spec.type == "counter")
        assert spec.name.endswith("_info") == (spec.type == "info")
        assert not spec.unit or spec.name.removesuffix("_total").endswith("_" + spec.unit)
        assert set(spec.labels) <= {"rank", "local_rank", "gpu_uuid", "pci_bus_id", "state", "kind", "severity",
                                    "sampler", "reason", "process", "version", "device", "port", "transport",
                                     "net", "gdr", "cause", "purpose", "xid", "direction", "result"}  # fmt: skip


def test_help_of_the_ranks_state_lists_all_states() -> None:
    (spec,) = (spec for spec in METRICS if spec.name == "diag_rank_state")

    assert spec.help.endswith(": " + ", ".join(RANK_STATES) + ".")


def test_openmetrics_parses_and_carries_the_finding_as_exemplar(hung: Any) -> None:
    body, content_type = exposition(families(hung), OPENMETRICS)

    told = {family.name: family for family in parse_openmetrics(body.decode())}
    assert content_type.startswith("application/openmetrics-text")
    exemplar = told["diag_findings"].samples[0].exemplar
    assert exemplar is not None and exemplar.labels == {"finding_id": "hang:job"}
    assert told["diag_journal_bytes"].unit == "bytes"


def test_both_formats_hold_the_same_series(hung: Any) -> None:
    plain = samples(hung)
    text = exposition(families(hung), OPENMETRICS)[0].decode()

    opened = [sample for family in parse_openmetrics(text) for sample in family.samples]
    assert len(opened) == len(plain)


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", "application/openmetrics-text;version=x", "application/openmetrics-text;version=",
               "text/plain;version=1.0.0;escaping=allow-utf-8", ",;,=;", "application/openmetrics-text;version=9.9.9"],
)  # fmt: skip
def test_any_accept_header_is_answered(hung: Any, accept: str) -> None:
    body, content_type = exposition(families(hung), accept)

    assert b"diag_build_info" in body
    assert "charset=utf-8" in content_type


@given(subject=st.text(st.characters(), max_size=200), version=st.text(st.characters(), max_size=20))
def test_any_text_in_a_label_survives_both_parsers(kit: Any, subject: str, version: str) -> None:
    hub = kit.FakeHub(version=version)
    hub.says.findings = [kit.finding(subject=subject)]
    hub.engine.advance(1040.0)

    told = exposition(families(hub), OPENMETRICS)[0].decode()
    assert list(parse_text(exposition(families(hub))[0].decode()))
    build = next(family for family in parse_openmetrics(told) if family.name == "diag_build")
    assert build.samples[0].labels["version"] == version.encode("utf-8", "replace").decode()


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed"
)
def test_promtool_has_nothing_to_say(hung: Any) -> None:
    # promtool reads this text only; OpenMetrics is judged by the parser above
    body = exposition(families(hung))[0]

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=body, capture_output=True, check=False, timeout=30
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_processes_of_the_fullest_cgroup_pressure_and_the_hosts_memory_are_told(hub: Any, kit: Any) -> None:
    for rank, current in ((0, 90), (1, 60)):
        hub.engine._dispatch(CgroupPids(rank, f"/pids/{rank}", current, 100, 0))
    hub.engine._dispatch(HostMemory(0, 64 << 30, 8 << 30, pressure_full_ratio=0.5))

    told = samples(hub)

    assert (told[("diag_cgroup_processes",)], told[("diag_cgroup_processes_limit",)]) == (90, 100)
    assert told[("diag_memory_pressure_stalled_ratio",)] == 0.5
    assert (told[("diag_host_memory_available_bytes",)], told[("diag_host_memory_total_bytes",)]) == (
        8 << 30,
        64 << 30,
    )
