"""Folders of loose evidence: judged whole, in parts, damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.engine.replay import replay
from diag.model import Finding
from tests.loose import LOOSE, judged, part_of

# --- all of it

HANGS = [
    ("data_hang", "data_loading", (1,), (0,)),
    ("skip_collective", "peer_not_joined", (1,), (0,)),
    ("mismatch_op", "collective_mismatch", (0, 1), ()),
    ("rank_killed", "peer_lost", (1,), (0,)),
    ("megatron_data_hang", "data_loading", (1,), (0,)),
    ("mega4_data_hang", "data_loading", (2,), (0, 1, 3)),
]


@pytest.mark.parametrize(("scenario", "klass", "culprits", "waiting"), HANGS, ids=[row[0] for row in HANGS])
def test_recorded_hang_is_named_from_the_folder_as_it_is(
    scenario: str, klass: str, culprits: tuple[int, ...], waiting: tuple[int, ...]
) -> None:
    hang = judged(LOOSE / scenario)["hang"]

    assert (hang.klass, hang.ranks, hang.waiting_ranks) == (klass, culprits, waiting)
    assert hang.confidence.value == "high"
    assert hang.severity.value == "critical"


def test_missions_hang_names_the_stuck_worker_and_the_call_that_the_other_waits_in() -> None:
    hang = judged(LOOSE / "megatron_data_hang")["hang"]

    assert "DataLoader worker pid 2458" in hang.summary
    assert "rank 0 waits in reduce_scatter_tensor" in hang.summary
    assert "2 of 2 ranks seen" in hang.summary


def test_hang_in_the_first_step_says_that_the_groups_communicator_is_not_made_and_ras_knows_only_the_worlds() -> (
    None
):
    """TP 2 on two GPUs: rank 0 stands in the first call of its tensor parallel group; RAS's "RUNNING OK" is
    no evidence."""
    said = [
        item.excerpt
        for item in judged(LOOSE / "megatron_data_hang")["hang"].evidence
        if item.kind == "nccl_ras"
    ]

    assert len(said) == 1
    assert "no communicator has counted the call of rank 0 in reduce_scatter_tensor" in said[0]
    assert "of all 2 ranks, is at rest" in said[0] and "not made yet" in said[0]


def test_hang_among_stages_tells_apart_who_waits_for_the_other_stage_and_who_in_the_dispatch_of_tokens() -> (
    None
):
    """TP 2, PP 2, EP 2: rank 2 stands in the data; its peer 3 by one all-gather ahead; ranks 0 and 1 are the
    first stage."""
    engine, _, _ = replay([LOOSE / "mega4_data_hang"])
    hang = next(finding for finding in engine.active() if finding.id == "hang")

    assert "rank 2 has waited for a batch from DataLoader worker pid 1938" in hang.summary
    assert "ranks 0-1 wait in synchronize (from P2PCommunicator._communicate_shapes" in hang.summary
    assert (
        "rank 3 waits in Event.synchronize (from MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize"
        in hang.summary
    )
    said = [item.excerpt for item in hang.evidence if item.kind == "nccl_ras"]
    assert said and all("launched up to operation" in text for text in said)
    assert any("process 1230 on node" in text for text in said)  # rank 2's
    # "TP: 2, PP: 2" in the log tells who its peers are
    assert "straggler" not in {item.what for item in engine.not_checked()}


def test_mismatch_shows_both_calls() -> None:
    hang = judged(LOOSE / "mismatch_op")["hang"]

    here = "and is in main (/app/train.py:60)"
    assert f"rank 0 calls all_reduce [1024] {here}, rank 1 calls broadcast [1024] {here}" in hang.summary


@pytest.mark.parametrize("scenario", ["healthy", "megatron_healthy"])
def test_healthy_run_gives_nothing(scenario: str) -> None:
    assert judged(LOOSE / scenario) == {}


def test_two_hosts_without_rdma_are_on_sockets_and_nobody_is_hung() -> None:
    found = judged(LOOSE / "healthy__twohosts")

    assert list(found) == ["ib-fallback"]
    assert (found["ib-fallback"].ranks, found["ib-fallback"].cause) == ((0, 1), "no_device")
    # the log does not tell whether the machine has RDMA at all
    assert found["ib-fallback"].severity.value == "warning"


def test_interface_that_is_not_there_is_named_with_the_variable_that_asks_for_it() -> None:
    found = judged(LOOSE / "healthy__iffail")["nccl-no-interface"]

    assert (found.ranks, found.cause) == ((0,), "ifname_matches_nothing")
    assert "NCCL_SOCKET_IFNAME=ib0" in found.summary


def test_slow_rank_is_a_straggler_and_no_hang() -> None:
    found = judged(LOOSE / "straggler")

    assert list(found) == ["straggler"]
    assert (found["straggler"].ranks, found["straggler"].waiting_ranks) == ((1,), (0,))


@pytest.mark.parametrize(
    ("scenario", "rank", "words"),
    [
        ("rank_killed", 1, "killed by signal 9"),
        ("cuda_oom", 1, "CUDA out of memory"),
        ("device_assert", 1, "device-side assert triggered"),
        ("healthy__smallshm", 0, "ended with exit code 1"),
        ("cudnn_mismatch", 0, "cuDNN Error"),
        ("healthy__iffail", 0, "NCCL error"),
    ],
)
def test_rank_that_failed_is_the_root_and_its_peers_timeout_is_not(
    scenario: str, rank: int, words: str
) -> None:
    found = judged(LOOSE / scenario)

    assert found["rank-died"].ranks == (rank,)
    told = [
        found["rank-died"].summary,
        *(item.excerpt for finding in found.values() for item in finding.evidence),
    ]
    assert any(words in text for text in told)
    assert found["hang"].ranks == (rank,) if "hang" in found else True


def test_memory_of_the_gpu_that_ran_out_comes_before_the_death_and_the_hang_that_follow_from_it() -> None:
    engine, _, _ = replay([LOOSE / "cuda_oom"])

    first = engine.active()[0]
    assert [finding.id for finding in engine.active()] == ["cuda-oom", "rank-died", "hang"]
    assert (first.ranks, first.cause, first.confidence.value) == ((1,), "capacity", "high")
    assert "rank 1 ran out of GPU memory after iteration 4: it asked for 16 GiB of GPU 1" in first.summary
    assert judged(LOOSE / "cuda_oom")["rank-died"].advice.startswith(
        "See finding cuda-oom for why rank 1 failed"
    )


def test_failed_check_in_a_kernel_is_the_programs_and_xid_43_its_consequence() -> None:
    engine, _, _ = replay([LOOSE / "device_assert"])

    first = engine.active()[0]
    assert [finding.id for finding in engine.active()] == ["gpu-fault", "rank-died", "hang"]
    assert (first.ranks, first.cause) == ((1,), "device_assert")
    assert "the program is to blame, not the GPU; Xid 43 of the driver follows from it" in first.summary


@pytest.mark.parametrize(("scenario", "wanted"), [("cuda_oom", "cuda-oom"), ("device_assert", "gpu-fault")])
def test_logs_alone_are_enough_to_name_what_failed_on_the_gpu(
    scenario: str, wanted: str, tmp_path: Path
) -> None:
    found = judged(part_of(scenario, tmp_path, lambda name: name.endswith(".log")))

    assert found[wanted].ranks == (1,)


def test_shared_memory_that_ran_out_is_named_on_the_rank_that_had_too_little() -> None:
    engine, _, _ = replay([LOOSE / "healthy__smallshm"])

    assert (engine.active()[0].id, engine.active()[0].ranks) == ("shm-too-small", (0,))


# --- parts of it

PARTS: dict[str, Callable[[str], bool]] = {
    "logs only": lambda name: name.endswith(".log"),
    "stacks only": lambda name: "pyspy" in name,
    "json stacks only": lambda name: "pyspy" in name and name.endswith(".json"),
    "text stacks only": lambda name: "pyspy" in name and name.endswith(".txt") and "native" not in name,
    "recorder only": lambda name: name.startswith("fr_"),
    "gpus only": lambda name: name == "nvml.jsonl",
    "ras only": lambda name: "ras" in name,
    "no stacks": lambda name: "pyspy" not in name,
    "no logs": lambda name: not name.endswith(".log"),
    "no manifest": lambda name: name != "meta.json",
    "rank 0 only": lambda name: "rank1" not in name and name not in {"fr_trace_1", "meta.json"},
    "rank 1 only": lambda name: "rank0" not in name and name not in {"fr_trace_0", "meta.json"},
}
# (what may be named, or nothing at all): a wrong culprit never.
TRUTH = {
    "data_hang": (1,),
    "skip_collective": (1,),
    "mismatch_op": (0, 1),
    "rank_killed": (1,),
    "straggler": None,
    "healthy": None,
    "healthy__twohosts": None,
    "megatron_healthy": None,
    "megatron_data_hang": (1,),
    "mega4_data_hang": (2,),
    "cuda_oom": (1,),
    "device_assert": (1,),
    "healthy__smallshm": (0,),
    "cudnn_mismatch": None,
}
CLASSES = {
    "data_hang": {"data_loading", "peer_not_joined"},
    "skip_collective": {"peer_not_joined"},
    "mismatch_op": {"collective_mismatch"},
    "rank_killed": {"peer_lost", "peer_not_joined"},
    "megatron_data_hang": {"data_loading"},
    "mega4_data_hang": {"data_loading"},
    "cuda_oom": {"peer_lost", "peer_not_joined"},
    "device_assert": {"peer_lost", "peer_not_joined"},
    "healthy__smallshm": {"peer_lost", "peer_not_joined"},
}


def has_part(scenario: str, part: str) -> bool:
    return any(PARTS[part](path.name) for path in (LOOSE / scenario).iterdir())


@pytest.mark.parametrize(
    ("scenario", "part"),
    [(scenario, part) for scenario in TRUTH for part in PARTS if has_part(scenario, part)],
)
def test_part_of_the_evidence_never_names_a_wrong_rank(scenario: str, part: str, tmp_path: Path) -> None:
    found = judged(part_of(scenario, tmp_path, PARTS[part]))

    assert [slow.ranks for slow in [found.get("straggler")] if slow] in (
        [],
        [(1,)] if scenario == "straggler" else [],
    )
    hang, truth = found.get("hang"), TRUTH[scenario]
    if truth is None:
        assert hang is None
    elif hang is not None:
        assert set(hang.ranks) <= set(truth), hang.summary
        assert hang.klass in {"unknown"} | CLASSES[scenario], hang.summary
        if scenario != "mismatch_op":
            whole = judged(LOOSE / scenario)["hang"]
            assert _level(hang) <= _level(whole)


def _level(finding: Finding) -> int:
    return ("low", "medium", "high").index(finding.confidence.value)


@pytest.mark.parametrize(
    ("scenario", "part", "klass", "culprits"),
    [
        ("data_hang", "stacks only", "data_loading", (1,)),
        ("data_hang", "text stacks only", "data_loading", (1,)),
        ("data_hang", "recorder only", "peer_not_joined", (1,)),
        ("data_hang", "rank 1 only", "data_loading", (1,)),
        ("data_hang", "logs only", "unknown", ()),
        ("skip_collective", "logs only", "peer_not_joined", (1,)),
        ("skip_collective", "stacks only", "peer_not_joined", (1,)),
        ("skip_collective", "no stacks", "peer_not_joined", (1,)),
        ("mismatch_op", "logs only", "collective_mismatch", (0, 1)),
        ("mismatch_op", "recorder only", "collective_mismatch", (1,)),
        ("mismatch_op", "no stacks", "collective_mismatch", (1,)),
        ("rank_killed", "logs only", "unknown", (1,)),
        ("megatron_data_hang", "stacks only", "data_loading", (1,)),
        ("megatron_data_hang", "no logs", "data_loading", (1,)),
        ("mega4_data_hang", "stacks only", "data_loading", (2,)),
        ("mega4_data_hang", "text stacks only", "data_loading", (2,)),
        ("cuda_oom", "logs only", "peer_lost", (1,)),
    ],
)
def test_part_of_the_evidence_that_suffices_is_used(
    scenario: str, part: str, klass: str, culprits: tuple[int, ...], tmp_path: Path
) -> None:
    hang = judged(part_of(scenario, tmp_path, PARTS[part]))["hang"]

    assert (hang.klass, hang.ranks) == (klass, culprits), hang.summary


# --- hostile and damaged


def test_damaged_files_are_told_and_the_rest_is_used(tmp_path: Path) -> None:
    folder = part_of("data_hang", tmp_path, lambda name: True)
    for name in (
        "pyspy_rank0.json",
        "pyspy_rank0_child846.json",
        "fr_trace_0",
        "nvml.jsonl",
        "ras_json.txt",
        "rank0.log",
    ):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2] + b"\xff\x00\xfe")
    (folder / "meta.json").write_text(
        '{"codes": [null, "x", {}], "events": [1, ["a"], [0, "b", "looked"], [1e99, "looked"]]'
    )
    (folder / "pyspy_rank7.txt").write_bytes(
        b"Process 1: \n" + b"Thread 5 (idle)\n" + b"    f (a.py:1)\n" * 100_000
    )
    (folder / "proc_status_rank1").write_bytes(b"\x00" * 4096)

    engine, _, notes = replay([folder])

    hang = next(finding for finding in engine.active() if finding.id == "hang")
    assert hang.ranks == (1,)
    assert any("pyspy_rank0.json" in note for note in notes)


NONSENSE = [
    b"",
    b"[",
    b"{",
    b"[[[[" * 50_000,
    b"\x80\x04.",
    b"Process 12: x",
    b'{"gpu": {}}',
    b"\xef\xbf\xbd\x02}",
]
NAMES = [
    "pyspy_rank0.json",
    "fr_trace_0",
    "nvml.jsonl",
    "meta.json",
    "ras.json",
    "rank0.log",
    "proc_stat_rank0",
]


@pytest.mark.parametrize("content", NONSENSE)
@pytest.mark.parametrize("name", NAMES)
def test_nonsense_in_any_file_is_no_finding_and_no_error(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)

    assert judged(tmp_path) == {}


def test_moments_are_put_in_order_by_the_cpu_that_the_ranks_used(tmp_path: Path) -> None:
    part_of("megatron_data_hang", tmp_path, lambda name: name.startswith("hang_") or name == "job.log")
    # an earlier moment, whose name comes later in the alphabet
    for path in list(tmp_path.glob("hang_pyspy_rank?.json")):
        rank = path.name.split("rank")[1][0]
        earlier = (LOOSE / "megatron_healthy" / f"steps_pyspy_rank{rank}.json").read_text()
        pid = 2237 + int(rank)
        (tmp_path / f"warmup_pyspy_rank{rank}.json").write_text(
            earlier.replace(f'"pid": {911 + 1 + int(rank)}', f'"pid": {pid}')
        )
        stat = (tmp_path / f"hang_proc_stat_rank{rank}").read_text().split()
        stat[13] = "100"
        (tmp_path / f"warmup_proc_stat_rank{rank}").write_text(" ".join(stat))

    hang = judged(tmp_path)["hang"]

    assert (hang.klass, hang.ranks) == ("data_loading", (1,))


def test_one_stack_of_each_rank_is_said_to_prove_no_standstill(tmp_path: Path) -> None:
    for rank in range(2):
        shutil.copy(LOOSE / "straggler" / f"pyspy_rank{rank}.txt", tmp_path)

    engine, _, _ = replay([tmp_path])

    assert engine.active() == []
    assert [line.what for line in engine.not_checked()] == ["whether the job is stuck"]


def test_log_that_just_ends_is_no_hang(tmp_path: Path) -> None:
    log = (LOOSE / "data_hang" / "rank0.log").read_text().splitlines()
    kept = [line for line in log if "ProcessGroupNCCL" not in line and "debug" not in line]
    (tmp_path / "rank0.log").write_text("\n".join(kept) + "\n")

    assert judged(tmp_path) == {}
