"""Memory errors, links, heat and power of the job's GPUs: what is new, what is old, what is normal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diag.model import Record
from diag.model.observations import GpuHealth, GpuSample
from diag.sources.gpu import nvml
from tests.detectors.gpufacts import health, links, sample, training, xid
from tests.facts import Story

CAPTURES = Path(__file__).parents[1] / "captures"


def minutes(story: Story, *readings: tuple[GpuHealth, ...]) -> None:
    """One reading of each GPU's health a minute, and the samples between."""
    for reading in readings:
        story.tell(*reading)
        runs(story, sample, seconds=60)


def runs(story: Story, gpu: Callable[[int], GpuSample], seconds: float = 90) -> None:
    """The GPUs are sampled every 5 s for so long."""
    end = story.now + seconds
    while story.now < end:
        story.tell(*(gpu(index) for index in range(story.world)))
        story.wait(5)


def ids(story: Story) -> list[str]:
    return [finding.id for finding in story.findings()]


def test_healthy_h200_gives_nothing() -> None:
    # two H200, as NVML told them
    story = training()
    payload = json.loads((CAPTURES / "gpu" / "nvml_health.json").read_text())
    facts = [fact for fact in nvml.parse(Record("nvml", payload)) if isinstance(fact, GpuHealth)]
    minutes(story, tuple(facts), tuple(facts), tuple(facts))

    assert len(facts) == 2 and ids(story) == [] and story.engine.not_checked() == []


# --- memory errors
# ---------------------------------------------------------------------------------------------


def test_errors_of_earlier_days_are_no_finding() -> None:
    story = training()
    old = health(
        1,
        ecc_uncorrected_volatile=2,
        ecc_uncorrected_aggregate=14,
        ecc_corrected_aggregate=90_000,
        remapped_rows_uncorrected=3,
    )
    minutes(story, (health(0), old), (health(0), old))

    assert ids(story) == []


def test_errors_that_ecc_could_not_correct_while_the_job_ran_are_told() -> None:
    story = training()
    minutes(
        story,
        (health(0), health(1, ecc_uncorrected_volatile=2)),
        (health(0), health(1, ecc_uncorrected_volatile=5)),
    )

    found = story.the("ecc-error")
    assert (found.subject, found.ranks, found.cause, found.severity.value) == (
        "GPU 1",
        (1,),
        "uncorrected",
        "warning",
    )
    assert "3 memory errors that ECC could not correct since the job began" in found.summary
    assert "--gpu-reset -i 1" in found.advice


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"remap_pending": True}, "remap_pending", "waits to be mapped out"),
        ({"remap_failed": True, "remap_pending": True}, "remap_failed", "spare rows are used up"),
        ({"retired_pages_pending": True}, "remap_pending", "waits to be mapped out"),  # A100 and older
    ],
)
def test_bad_row_that_the_gpu_could_not_put_away_is_told(
    changes: dict[str, bool], cause: str, words: str
) -> None:
    story = training()
    minutes(story, (health(0), replace(health(1), **changes)))  # type: ignore[arg-type]

    assert (story.the("ecc-error").cause, story.the("ecc-error").ranks) == (cause, (1,))
    assert words in story.the("ecc-error").summary


def test_corrected_errors_are_what_ecc_is_for_until_they_are_thousands() -> None:
    story = training()
    minutes(story, (health(0), health(1)), (health(0), health(1, ecc_corrected_volatile=40)))
    few = ids(story)
    minutes(story, (health(0), health(1, ecc_corrected_volatile=5000)))

    assert few == []
    assert (story.the("ecc-error").cause, story.the("ecc-error").severity.value) == (
        "corrected_storm",
        "info",
    )


def test_notice_of_the_driver_alone_is_told() -> None:
    story = training()
    story.tell(health(0), health(1), xid(63, 1))
    story.wait(2)

    assert story.the("ecc-error").cause == "xid_63"


def test_error_that_ended_a_program_is_told_once() -> None:
    story = training()
    minutes(story, (health(0), health(1)))
    story.tell(xid(95, 1), health(1, ecc_uncorrected_volatile=1, remap_pending=True))
    story.wait(5)

    assert ids(story) == ["gpu-fault"]


def test_gpu_without_ecc_is_not_called_healthy() -> None:
    story = training()
    minutes(story, (health(0, ecc_enabled=False), health(1, ecc_enabled=False)))

    assert [line.what for line in story.engine.not_checked()] == ["memory errors of GPU 0, 1"]
    assert ids(story) == []


def test_gpu_that_the_job_does_not_use_is_left_alone() -> None:
    story = training(1)
    story.tell(sample(1, pids=(31337,)))
    minutes(story, (health(0), health(1, remap_failed=True, nvlinks=links(1, 2, 3))))

    assert ids(story) == []


# --- NVLink
# ----------------------------------------------------------------------------------------------------


def test_link_that_goes_down_is_named() -> None:
    story = training()
    minutes(story, (health(0), health(1)), (health(0), health(1, nvlinks=links(7))))

    found = story.the("nvlink-fault")
    assert (found.subject, found.ranks, found.cause, found.severity.value) == (
        "GPU 1",
        (1,),
        "went_down",
        "warning",
    )
    assert "NVLink 7 went down, 17 of 18 are up" in found.summary


def test_gpu_without_any_link_left_is_grave() -> None:
    story = training()
    minutes(story, (health(0), health(1)), (health(0), health(1, nvlinks=links(*range(18)))))

    assert story.the("nvlink-fault").severity.value == "critical"


def test_gpu_with_fewer_links_than_its_like_is_told_though_they_were_never_up() -> None:
    story = training()
    minutes(story, (health(0), health(1, nvlinks=links(0, 1))))

    assert "only 16 of its NVLinks are up, 18 on others of its kind" in story.the("nvlink-fault").summary
    assert story.the("nvlink-fault").ranks == (1,)


def test_link_that_comes_up_again_ends_the_finding() -> None:
    story = training()
    minutes(
        story, (health(0), health(1)), (health(0), health(1, nvlinks=links(7))), *[(health(0), health(1))] * 4
    )

    assert ids(story) == []


@pytest.mark.parametrize(
    "nvlinks",
    [(), links(*range(6, 12), count=12), links(count=4)],  # PCIe cards; half of the links bridged; small GPUs
    ids=["none", "bridges", "four"],
)
def test_links_that_are_alike_on_all_gpus_are_taken_as_built_so(nvlinks: tuple[object, ...]) -> None:
    story = training()
    minutes(story, *[(health(0, nvlinks=nvlinks), health(1, nvlinks=nvlinks))] * 2)

    assert ids(story) == []


def test_links_of_one_gpu_alone_matter_to_nobody() -> None:
    story = training(1)
    minutes(story, (health(0),), (health(0, nvlinks=links(3)),))

    assert ids(story) == []


@pytest.mark.parametrize("counters", [{"recoveries": 1}, {"replays": 400}, {"crc_errors": 400}])
def test_link_that_repairs_itself_again_and_again_is_told(counters: dict[str, int]) -> None:
    story = training()
    minutes(story, (health(0), health(1)), (health(0), health(1, nvlinks=links(**counters))))

    assert (story.the("nvlink-fault").cause, story.the("nvlink-fault").ranks) == ("errors", (1,))


def test_counts_of_earlier_days_and_a_few_repeats_are_no_finding() -> None:
    story = training()
    seen = [links(recoveries=9, replays=9000, crc_errors=70_000 + more) for more in (0, 20)]
    minutes(story, *((health(0), health(1, nvlinks=nvlinks)) for nvlinks in seen))

    assert ids(story) == []


# --- heat and power
# --------------------------------------------------------------------------------------------

IDLE, APP_CLOCKS, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, BRAKE = 0x1, 0x2, 0x4, 0x8, 0x20, 0x40, 0x80


def hot(index: int, bits: int, clock: int = 1_125_000_000) -> GpuSample:
    return sample(index, throttle_reasons=bits, sm_clock_hertz=clock, temperature_celsius=87.0)


@pytest.mark.parametrize(
    ("bits", "cause"), [(SW_THERMAL, "sw_thermal"), (HW_THERMAL | HW_SLOWDOWN, "hw_thermal")]
)
def test_gpu_that_is_held_back_by_heat_is_named_beside_the_others(bits: int, cause: str) -> None:
    story = training()
    story.tell(health(0), health(1))

    runs(story, lambda index: hot(1, bits) if index else sample(0))

    found = story.the("thermal-throttle")
    assert (found.ranks, found.cause, found.severity.value) == ((1,), cause, "warning")
    assert "GPU 1 of rank 1 is held back by heat: 1125 MHz of 1980 MHz at 87 °C" in found.summary
    assert "the others run at 1755 MHz" in found.summary
    assert "power-brake" not in ids(story)


def test_node_that_is_hot_as_a_whole_is_one_finding() -> None:
    story = training()
    runs(story, sample, seconds=10)  # what they can

    runs(story, lambda index: hot(index, HW_THERMAL))

    assert story.the("thermal-throttle").ranks == (0, 1)
    assert "2 of 2 GPUs of ranks 0-1 are held back by heat" in story.the("thermal-throttle").summary


def test_power_supply_that_brakes_the_gpu_is_named() -> None:
    story = training()
    story.tell(health(0), health(1))

    runs(story, lambda index: hot(1, BRAKE | HW_SLOWDOWN, 345_000_000) if index else sample(0))

    assert (story.the("power-brake").cause, story.the("power-brake").ranks) == ("power_brake", (1,))
    assert "345 MHz of 1980 MHz" in story.the("power-brake").summary
    assert "thermal-throttle" not in ids(story)


def test_hardware_slowdown_that_is_not_for_heat_is_told_as_such() -> None:
    story = training()
    story.tell(health(0), health(1))

    runs(story, lambda index: hot(1, HW_SLOWDOWN) if index else sample(0))

    assert story.the("power-brake").cause == "hw_slowdown"


@pytest.mark.parametrize(
    ("bits", "changes"),
    [
        (POWER_CAP, {}),  # any GPU at full load
        (APP_CLOCKS, {"sm_clock_hertz": 1_200_000_000}),  # clocks that somebody set
        (IDLE, {"utilization_ratio": 0.0, "sm_clock_hertz": 345_000_000}),
        (HW_THERMAL, {"utilization_ratio": 0.02, "sm_clock_hertz": 345_000_000}),  # hot after work, and idle
        (SW_THERMAL, {"sm_clock_hertz": 1_965_000_000}),  # it costs no speed
        (None, {}),
    ],
    ids=["power_cap", "app_clocks", "idle", "hot_and_idle", "no_loss", "unknown"],
)
def test_reason_that_is_normal_or_costs_nothing_is_no_finding(
    bits: int | None, changes: dict[str, float]
) -> None:
    story = training()
    story.tell(health(0), health(1))

    runs(story, lambda index: sample(index, throttle_reasons=bits, **changes))

    assert ids(story) == []


def test_moment_of_heat_is_no_finding() -> None:
    story = training()
    story.tell(health(0), health(1))
    for _ in range(6):
        runs(story, lambda index: hot(index, HW_THERMAL), seconds=5)
        runs(story, sample, seconds=10)

    assert ids(story) == []


def test_driver_that_does_not_tell_its_reasons_is_said_to_be_not_checked() -> None:
    story = training()
    runs(story, lambda index: sample(index, throttle_reasons=None), seconds=10)

    assert [line.what for line in story.engine.not_checked()] == ["what holds back the clocks of GPU 0, 1"]


@pytest.mark.parametrize("scenario", ["healthy", "straggler", "megatron_healthy", "rank_killed"])
def test_recorded_series_of_sound_gpus_tells_nothing(scenario: str) -> None:
    from diag.engine.replay import replay

    engine, _, _ = replay([CAPTURES / "loose" / scenario])

    found = {finding.id for finding in engine.all_findings()}
    assert not found & {
        "thermal-throttle",
        "power-brake",
        "ecc-error",
        "nvlink-fault",
        "gpu-fault",
        "cuda-oom",
    }
