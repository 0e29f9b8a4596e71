"""Which GPU is whose: by NVML's processes, else by the devices that a rank may see."""

from __future__ import annotations

import pytest

from diag.model.observations import EnvironmentSeen, Observation
from diag.state.gpustate import gpu_of_rank, gpus_of_ranks, rank_of_bus, ranks_of_gpu
from tests.detectors.gpufacts import BUSES, sample
from tests.facts import Story, pid_of


def visible(rank: int, devices: str) -> EnvironmentSeen:
    return EnvironmentSeen(rank, pid_of(rank), (("CUDA_VISIBLE_DEVICES", devices),))


def whose(story: Story, *facts: Observation) -> dict[int, int]:
    story.tell(*facts)
    return {rank: gpu.index for rank, gpu in gpus_of_ranks(story.engine.job).items()}


def test_processes_that_nvml_shows_decide() -> None:
    crossed = whose(Story(), sample(0, pids=(pid_of(1),)), sample(1, pids=(31337, pid_of(0))))

    assert crossed == {0: 1, 1: 0}


def test_gpu_of_a_rank_is_known_after_its_death() -> None:
    story = Story()
    story.tell(sample(0, pids=(pid_of(1),)), sample(1, pids=(pid_of(0),)))

    assert whose(story, sample(0, pids=()), sample(1, pids=())) == {0: 1, 1: 0}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("2,3", {0: 2, 1: 3}),
        ("GPU-3,GPU-1", {0: 3, 1: 1}),
        ("0", {0: 0, 1: 0}),
        ("MIG-5,MIG-6", {}),
        ("2,3,9,9", {0: 2, 1: 3}),
    ],
)
def test_hidden_processes_go_by_the_devices_that_a_rank_may_see(
    devices: str, expected: dict[int, int]
) -> None:
    gpus = [sample(index, pids=()) for index in range(4)]

    assert whose(Story(), visible(0, devices), visible(1, devices), *gpus) == expected


def test_position_is_trusted_where_the_environment_hides_no_device() -> None:
    environments = [EnvironmentSeen(rank, pid_of(rank), (("RANK", str(rank)),)) for rank in (0, 1)]

    assert whose(Story(), *environments, *(sample(index, pids=()) for index in range(4))) == {0: 0, 1: 1}


def test_nothing_is_guessed_where_nobody_may_read_the_environment_and_gpus_are_more_than_ranks() -> None:
    assert whose(Story(), *(sample(index, pids=()) for index in range(4))) == {}
    assert whose(Story(), *(sample(index, pids=()) for index in range(2))) == {0: 0, 1: 1}


def test_kernels_and_nvmls_addresses_are_the_same_gpu() -> None:
    story = Story()
    story.tell(sample(0), sample(1))
    job = story.engine.job

    assert rank_of_bus("0000:00:07", job) == rank_of_bus(BUSES[1], job) == ranks_of_gpu(1, job) == (1,)
    assert rank_of_bus("", job) == ()
    gpu = gpu_of_rank(job.ranks[0], job)
    assert gpu is not None and gpu.pci_bus_id == BUSES[0]
