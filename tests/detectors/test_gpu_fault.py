"""GPUs that failed and programs that failed on them: causes told from consequences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.knowledge.xids import advice, xid_of, xids
from diag.model import Confidence, Record
from diag.model.observations import EnvironmentSeen, Iteration, SxidReported, XidReported
from diag.sources.host import kmsg
from tests.detectors.gpufacts import health, said, sample, training, xid
from tests.facts import Story, found, pid_of

CAPTURES = Path(__file__).parents[1] / "captures" / "gpu"


def recorded(name: str) -> list[str]:
    sections = re.split(r"^### ", (CAPTURES / "cuda_failures.txt").read_text(), flags=re.MULTILINE)
    return next(section for section in sections if section.startswith(name + " ")).splitlines()[1:]


def driver(number: int, pid: int) -> list[XidReported]:
    """The driver's recorded lines of this Xid, of the process `pid`."""
    lines = [line for line in (CAPTURES / "dmesg.txt").read_text().splitlines() if f"): {number}," in line]
    lines = [re.sub(r"pid=\d+", f"pid={pid}", line) for line in lines]
    return [fact for fact in kmsg.parse(Record("kmsg", {"lines": lines})) if isinstance(fact, XidReported)]


def fails(story: Story, rank: int, lines: list[str], code: int = 1) -> None:
    for line in lines:
        story.tell(*said(line, rank))
    story.wait(1)
    story.exit(rank, code=code)
    story.wait(3)


# --- the program
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number", "cause"),
    [
        ("device_assert", 43, "device_assert"),
        ("illegal_address", 31, "illegal_address"),
        ("misaligned", 13, "misaligned_address"),
    ],
)
def test_xid_that_follows_from_the_program_blames_the_program(name: str, number: int, cause: str) -> None:
    # recorded on an H200: a device-side assert makes Xid 43, an illegal address 31, a misaligned one 13 in
    # three lines
    story = training()
    story.tell(*driver(number, pid_of(1)))

    fails(story, 1, recorded(name))

    fault = story.the("gpu-fault")
    assert (fault.ranks, fault.cause, fault.severity.value, fault.confidence.value) == (
        (1,),
        cause,
        "critical",
        "high",
    )
    assert "the program is to blame, not the GPU" in fault.summary
    assert f"Xid {number} of the driver follows from it" in fault.summary
    assert "CUDA_LAUNCH_BLOCKING=1" in fault.advice
    assert {item.kind for item in fault.evidence} == {"output", "kmsg"}


def test_failed_check_of_a_kernel_is_quoted_and_the_label_range_named() -> None:
    story = training()

    fails(story, 1, recorded("device_assert"))

    assert "(Assertion `srcIndex < srcSelectDimSize`)" in story.the("gpu-fault").summary
    assert "token id >= the embedding's rows" in story.the("gpu-fault").advice


def test_program_is_blamed_without_the_kernel_log_too() -> None:
    story = training()

    fails(story, 1, recorded("illegal_address"))

    assert story.the("gpu-fault").cause == "illegal_address" and "Xid" not in story.the("gpu-fault").summary


def test_launch_failure_after_a_core_dump_that_was_asked_for_is_not_the_programs() -> None:
    story = training()

    fails(story, 0, (CAPTURES / "cuda_coredump.txt").read_text().splitlines())

    fault = story.the("gpu-fault")
    assert (fault.cause, fault.ranks) == ("core_dump", (0,))
    assert (
        "neither the program nor the GPU is to blame" in fault.summary
        and "CUDA_COREDUMP_PIPE" in fault.advice
    )


def test_launch_failure_long_after_a_dump_or_an_illegal_access_beside_one_is_the_programs() -> None:
    for words, seconds, cause in (
        ("unspecified launch failure", 300, "launch_failure"),
        ("an illegal memory access was encountered", 1, "illegal_address"),
    ):
        story = training()
        story.tell(*said("[10:43:10.089509] coredump: Starting GPU coredump generation"))
        story.wait(seconds)
        story.tell(*said(f"[rank0]: torch.AcceleratorError: CUDA error: {words}"))
        story.wait(2)

        assert story.the("gpu-fault").cause == cause


def test_who_is_to_blame_for_an_unknown_error_is_left_open() -> None:
    said_of = {}
    for words in ("unknown error", "device-side assert triggered", "uncorrectable ECC error encountered"):
        story = training()
        story.tell(*said(f"[rank0]: torch.AcceleratorError: CUDA error: {words}"))
        story.wait(2)
        said_of[words] = story.the("gpu-fault").summary

    assert said_of["unknown error"].endswith("whether the program or the GPU is to blame, it does not tell")
    assert said_of["device-side assert triggered"].endswith("the program is to blame, not the GPU")
    assert said_of["uncorrectable ECC error encountered"].endswith("the GPU or its links are to blame")


def test_same_input_on_all_ranks_makes_all_of_them_culprits() -> None:
    story = training(4)
    for rank in (0, 2):
        story.tell(*said(f"[rank{rank}]: torch.AcceleratorError: CUDA error: device-side assert triggered"))
    story.wait(20)
    story.tell(*said("[rank1]: torch.AcceleratorError: CUDA error: unspecified launch failure"))
    story.wait(2)

    fault = story.the("gpu-fault")
    assert (fault.ranks, fault.waiting_ranks) == ((0, 2), (1,))


def test_error_that_the_program_survives_is_no_finding() -> None:
    story = training()
    story.tell(*said("Triton Error [CUDA]: misaligned address; falling back to the slow path", 1))
    for number in range(41, 91):
        story.tell(Iteration(None, number, 100, f"iteration {number}/100"))
        story.wait(1)
        story.engine.job.ranks[1].moved["cpu"] = story.now

    assert story.findings() == []


def test_cleanup_after_a_kill_is_no_fault_of_the_gpu() -> None:
    # drivers before 535 report Xid 45 for any process that is killed while it computes; 580 reports nothing
    # (recorded)
    story = training()
    story.tell(xid(45, 1, pid_of(1)))
    story.exit(1, signal=9)
    story.wait(3)

    assert [finding.id for finding in story.findings()] == ["rank-died"]


def test_program_xid_of_a_rank_that_failed_without_a_word_is_told_with_low_confidence() -> None:
    story = training()
    story.tell(xid(31, 1, pid_of(1)))
    story.exit(1, code=1)
    story.wait(3)

    assert (story.the("gpu-fault").cause, story.the("gpu-fault").confidence.value) == ("xid_31", "low")


# Two jobs on one H200, 2026-11-22, driver 580.159.04: the line is of the other one's process
NEIGHBOUR = "NVRM: Xid (PCI:0000:00:07): 31, pid=5996, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE"


@pytest.mark.parametrize("host_pids", [True, False])
def test_program_xid_of_a_neighbours_process_is_not_a_rank_s_that_died_of_something_else(
    host_pids: bool,
) -> None:
    story = training()
    story.tell(*kmsg.parse(Record(kmsg.SOURCE, {"lines": [NEIGHBOUR], "host_pids": host_pids})))
    fails(
        story,
        1,
        ["Traceback (most recent call last):", '  File "/app/loop.py", line 9, in <module>', "StopIteration"],
    )

    assert "gpu-fault" not in [finding.id for finding in story.findings()]
    assert 'it printed: "StopIteration"' in story.the("rank-died").summary


def test_program_xid_with_a_pid_of_the_host_is_told_with_the_doubt_only_where_pids_differ() -> None:
    inside, outside = training(), training()
    for story, host_pids in ((inside, False), (outside, True)):
        story.tell(*kmsg.parse(Record(kmsg.SOURCE, {"lines": [NEIGHBOUR], "host_pids": host_pids})))
        fails(story, 1, [])

    told = inside.the("gpu-fault")
    assert told.confidence is Confidence.LOW and "Whether pid 5996" in told.summary
    assert "gpu-fault" not in [finding.id for finding in outside.findings()]


def test_hardware_fault_counts_whoever_had_the_gpu_then() -> None:
    story = training()
    line = "NVRM: Xid (PCI:0000:00:07): 48, pid=5996, name=python3, DBE (double bit error) has occurred"
    story.tell(*kmsg.parse(Record(kmsg.SOURCE, {"lines": [line], "host_pids": True})))
    story.wait(5)

    assert story.the("gpu-fault").cause == "xid_48"


def test_memory_that_ran_out_is_not_told_twice() -> None:
    story = training()

    fails(
        story,
        1,
        [*recorded("oom_plain"), "[rank1]: torch.AcceleratorError: CUDA error: unspecified launch failure"],
    )

    assert [finding.id for finding in story.findings()][:2] == ["cuda-oom", "rank-died"]


def test_peers_whose_memory_went_with_a_dead_rank_are_victims() -> None:
    # CUDA error 721 on the survivors of a rank that was killed with its communicators open
    story = training()
    story.exit(0, signal=9)
    story.wait(2)
    words = "Invalid access of peer GPU memory over nvlink or a hardware error"
    story.tell(*said(f"[rank1]: torch.AcceleratorError: CUDA error: {words}"))
    story.wait(3)

    assert "gpu-fault" not in {finding.id for finding in story.findings()}
    assert story.the("rank-died").ranks == (0,)


# --- the hardware
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (79, "power-cycle"),
        (48, "--gpu-reset -i 1"),
        (95, "--gpu-reset -i 1"),
        (74, "fabric manager"),
        (149, "fabric manager"),
        (119, "update driver and firmware"),
        (64, "has to be replaced"),
        (94, "reset the GPU"),
    ],
)
def test_fault_of_the_hardware_names_gpu_slot_rank_and_what_to_do(number: int, words: str) -> None:
    story = training()
    story.tell(xid(number, 1))
    story.wait(2)

    fault = story.the("gpu-fault")
    assert (fault.subject, fault.ranks, fault.cause, fault.severity.value) == (
        "GPU 1",
        (1,),
        f"xid_{number}",
        "critical",
    )
    assert (
        f"GPU 1 of rank 1 at 0000:00:07 failed after iteration 40: Xid {number}, {xid_of(number).meaning}"
        in fault.summary
    )
    assert words in fault.advice


def test_what_follows_from_a_broken_gpu_is_not_taken_for_the_programs_error() -> None:
    story = training()
    story.tell(xid(45, 1, pid_of(1)), xid(48, 1), xid(43, 1, pid_of(1)), xid(154, 1))

    fails(story, 1, ["[rank1]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered"])

    (fault,) = [finding for finding in story.findings() if finding.id == "gpu-fault"]
    assert fault.cause == "xid_48" and "Xid 43, 45, 154 with it" in fault.summary


def test_ecc_error_of_cuda_is_the_hardwares_without_an_xid_too() -> None:
    story = training()

    fails(story, 1, ["[rank1]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"])

    assert story.the("gpu-fault").cause == "ecc_uncorrectable"
    assert "the GPU or its links are to blame" in story.the("gpu-fault").summary


def test_what_the_driver_recommends_is_passed_on() -> None:
    story = training()
    story.tell(xid(95, 1), health(1, recovery_action="drain_reset"))
    story.wait(2)

    assert "the driver asks for: drain reset" in story.the("gpu-fault").summary


def test_one_fault_told_by_kernel_log_and_nvml_is_one() -> None:
    story = training()
    story.tell(xid(79, 1))
    story.wait(4)
    story.tell(xid(79, 1, origin="nvml"))
    story.wait(2)

    (event,) = story.engine.job.gpu_faults.xids
    assert (event.reports, event.fact.origin) == (2, "kmsg")


def test_kernel_line_that_comes_after_nvmls_event_brings_its_words() -> None:
    story = training()
    story.tell(xid(79, 1, origin="nvml"))
    story.wait(2)
    story.tell(xid(79, 1, pid_of(1)))

    (event,) = story.engine.job.gpu_faults.xids
    assert (event.fact.origin, event.pids) == ("kmsg", (pid_of(1),))


def test_same_fault_half_a_minute_later_is_another_one() -> None:
    story = training()
    story.tell(xid(13, 1))
    story.wait(30)
    story.tell(xid(13, 1))

    assert len(story.engine.job.gpu_faults.xids) == 2


def test_gpu_of_another_job_on_the_node_is_not_ours() -> None:
    # given a job on GPUs 0 and 1 of three
    story = training()
    story.tell(*(EnvironmentSeen(rank, pid_of(rank), (("CUDA_VISIBLE_DEVICES", "0,1"),)) for rank in (0, 1)))
    story.tell(sample(2, pids=(31337,)), xid(79, 2))
    story.wait(2)

    assert story.findings() == []


def test_nvlink_fault_of_a_neighbours_gpu_is_told_since_they_share_the_switches() -> None:
    story = training()
    story.tell(sample(2, pids=(31337,)), xid(149, 2))
    story.wait(2)

    assert (story.the("gpu-fault").subject, story.the("gpu-fault").ranks) == ("GPU 2", ())


def test_nvlink_error_that_says_itself_that_it_is_not_fatal_is_none() -> None:
    story = training()
    text = "NVRM: Xid (PCI:0000:00:07): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000)"
    story.tell(*kmsg.parse(Record("kmsg", {"lines": [text]})))
    story.wait(2)

    assert len(story.engine.job.gpu_faults.xids) == 1 and story.findings() == []


def test_fault_that_is_only_in_a_log_without_gpus_needs_a_failure_beside_it() -> None:
    story = Story()  # no NVML, no pid in the line
    story.tell(xid(79, 1))
    story.wait(2)
    before = story.findings()
    story.exit(1, code=1)
    story.wait(3)

    assert before == []
    assert (story.the("gpu-fault").cause, story.the("gpu-fault").confidence.value) == ("xid_79", "medium")


def test_fault_from_before_the_rank_started_is_history() -> None:
    engine = Engine({}, make_detectors(), PRECEDENCE)
    engine.advance(1000.0)
    engine._dispatch(xid(79, 1))
    engine.advance(1100.0)
    for fact in (found(0), found(1), sample(0), sample(1)):
        engine._dispatch(fact)
    engine.advance(1105.0)

    assert engine.active() == []


def test_fatal_sxid_is_told_and_one_that_is_not_is_not() -> None:
    # H100 nodes report SXid 22013 and 20009, non-fatal, at each start (NVIDIA/nvtrust issue 124)
    story = training()
    story.tell(
        SxidReported(
            None,
            "0000:04:00.0",
            22013,
            False,
            44,
            "SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion",
        )
    )
    story.wait(2)
    before = story.findings()
    story.tell(
        SxidReported(
            None, "0000:04:00.0", 20034, True, 30, "SXid (PCI:0000:04:00.0): 20034, Fatal, Link 30 LTSSM"
        )
    )
    story.wait(2)

    assert before == []
    assert (story.the("gpu-fault").subject, story.the("gpu-fault").cause) == (
        "NVSwitch 0000:04:00.0",
        "sxid_20034",
    )


# --- the catalogue
# ---------------------------------------------------------------------------------------------


def test_catalogue_is_whole_and_says_which_faults_end_a_gpu() -> None:
    assert {entry.kind for entry in xids().values()} == {"hardware", "application", "consequence", "notice"}
    assert all(advice(entry.action) for entry in xids().values())
    ending = {number for number, entry in xids().items() if entry.ends_gpu}
    # what hangs are explained by: NVIDIA's catalogue has these as GPU, memory, link or firmware
    assert {
        46,
        48,
        62,
        64,
        74,
        79,
        95,
        109,
        110,
        119,
        120,
        136,
        140,
        143,
        *range(144, 151),
        155,
        156,
        158,
    } <= ending
    assert not {13, 31, 43, 45, 63, 92, 94, 106, 107, 154} & ending
