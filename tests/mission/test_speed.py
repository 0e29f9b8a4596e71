"""Which speed is normal? What a log and a command tell of it, and when nothing may be said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.cli.main import main
from diag.knowledge import peak_of
from diag.model import Record
from diag.model.observations import GpuSample, Iteration, MemoryEstimated
from diag.outputs.view.speed import speed_lines
from diag.preflight.estimate import estimate
from diag.preflight.estimate.speed import active_parameters, token_flops
from diag.preflight.estimate.trust import PUBLISHED
from diag.sources import estimate as source
from diag.state.speed import speed_json
from diag.state.steptimes import StepTimes
from diag.text.tables import load_table
from tests.facts import Story
from tests.mission.cases import Case, of_replay, printed

ENVIRONMENT = {"PATH": "/nonexistent", "HOME": "/nonexistent"}
PACKED = "--packing true --max_length 8192 --micro_batch_size 1"
DPO = (
    f"megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-30B-A3B {PACKED} --global_batch_size 4 --recompute_granularity full "
    "--tensor_model_parallel_size 4 --expert_model_parallel_size 8"
)
SFT = (
    "swift sft --model Qwen/Qwen2.5-14B --tuner_type full --packing true --max_length 8192 --deepspeed zero3"
)


# -- from a log alone ---------------------------------------------------------------------------------------


def elapsed(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    return (f"{hours}h " if hours else "") + (f"{minutes}m " if hours or minutes else "") + f"{seconds}s"


def swift_line(iteration: int, seconds: int, of: int = 400) -> str:
    return (
        f"{{'loss': {0.6 + iteration % 7 / 100}, 'grad_norm': 1.2, 'learning_rate': 9.8e-06, "
        f"'iteration': '{iteration}/{of}', 'elapsed_time': '{elapsed(seconds)}', 'remaining_time': '2h 3m 4s', "
        f"'memory(GiB)': 61.3, 'train_speed(s/it)': {seconds / iteration:.6f}}}"
    )


def bar(iteration: int, seconds: int, of: int = 400) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"Train:  {100 * iteration // of:2d}%|#         | {iteration}/{of} [{minutes:02d}:{rest:02d}<1:20:00, 13.02s/it]"


def replayed(path: Path, lines: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    path.write_text("\n".join(["[INFO:swift] The training of Epoch 0 starts...", *lines]) + "\n")
    main(["replay", "--json", str(path)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


DROP = "".join(
    f"{line}\n"
    for line in (
        "[INFO:swift] The training of Epoch 0 starts...",
        *(swift_line(i, 13 * i if i <= 120 else 13 * 120 + 91 * (i - 120)) for i in range(1, 161)),
    )
)


def estimated(lang: str = "en") -> list[str]:
    options = ("--gpu", "A800", "--step-seconds", "91.2", "--lang", lang)
    lines = printed("estimate", *options, "--", *SFT.split(), NPROC_PER_NODE="8", PATH="/nonexistent")
    # a line of the report that goes on in the next is one again
    return "\n".join(lines).replace("\n    ", " ").splitlines()


CASES = {
    "from 13 to 91 seconds": of_replay(
        (12, 16), "a log of ms-swift without times: 13 s a step, and 91 s from step 121 on", DROP,
        ("7 times the 13 s before",), unproven="which part of a step makes it slow",
    ),
    "91 seconds a step": Case(
        (16,), "91.2 s a step under ZeRO 3 on A800: is that normal?",
        "diag estimate --gpu A800 --step-seconds 91.2 -- swift sft ...", estimated,
        ("in 1 min 31 s: 180 tokens/s a GPU", "8 x A800, ZeRO 3, 8,192 tokens: 10.56 s/it, 58 GiB"),
        unproven="a speed to expect where nobody published one",
        said_in_chinese=lambda: estimated("zh"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


@pytest.mark.parametrize("line", [swift_line, bar])
def test_a_log_without_times_tells_its_pace_by_its_own_clock(
    line: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replayed(tmp_path / "train.log", [line(i, 13 * i) for i in range(1, 41)], capsys)

    assert found["job"]["steps"]["seconds_median"] == pytest.approx(13, abs=0.5)
    assert "speed" not in found["job"]
    assert "13 s a step" in found["sentence"]
    assert not found["findings"]


def test_steps_of_half_a_second_are_told_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replayed(tmp_path / "train.log", [swift_line(i, i // 2) for i in range(1, 301)], capsys)
    assert found["job"]["steps"]["seconds_median"] == pytest.approx(0.5, abs=0.03)


def test_lines_that_come_in_time_are_measured_by_their_arrival() -> None:
    """Their clock has whole seconds only."""
    steps = StepTimes()
    for i in range(40):
        steps.reported(1000 + 1.37 * i, i + 1, {}, clock=float(int(1.37 * i)))
    assert steps.median() == pytest.approx(1.37, abs=0.001)


def test_a_job_that_began_again_starts_its_clock_anew() -> None:
    steps = StepTimes()
    for i in range(20):
        steps.reported(1000.0, i + 1, {}, clock=20.0 * i)
    steps.start_over()
    for i in range(20):
        steps.reported(1001.0, i + 1, {}, clock=15.0 * i)
    assert steps.now() == pytest.approx(15.0)


# -- what a step computes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [run for run in load_table(PUBLISHED)["runs"] if "tflops" in run])
def test_operations_agree_with_those_that_are_published(run: dict[str, Any]) -> None:
    """NVIDIA gives tokens and model TFLOP a second of one GPU. It counts the whole of the attention scores, diag the half
    that is not masked."""
    words = f"megatron pt --model {run['model']} --max_length {run['length']} --micro_batch_size 1".split()
    plan = estimate(words, ENVIRONMENT).plan

    assert token_flops(plan) == pytest.approx(run["tflops"] * 1e12 / run["tokens_per_gpu"], rel=0.08)


def test_of_experts_only_the_chosen_ones_compute() -> None:
    plan = estimate(DPO.split(), {**ENVIRONMENT, "NPROC_PER_NODE": "8"}).plan
    assert 2.9e9 < active_parameters(plan) < 3.4e9


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA A800-SXM4-80GB", 312),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA H20", 148),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10", 125),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA H20x", None),
        ("Ascend 910B3", None),
    ],
)
def test_peaks_are_known_by_the_whole_name(name: str, peak: float | None) -> None:
    assert peak_of(name) == peak


# -- of a job --------------------------------------------------------------------------------------------------


def gpu(name: str, index: int = 0) -> GpuSample:
    return GpuSample(None, index, f"GPU-{index}", "0", name, 0.99, 1, 2, 1.0, 2.0, 1, 1.0)


def job(command: str, seconds: float, *names: str, ranks: str = "8", nodes: str = "1") -> Story:
    """One that makes 30 steps of so many seconds."""
    story = Story(())
    if command:
        environment = {**ENVIRONMENT, "NPROC_PER_NODE": ranks, "NNODES": nodes}
        payload = json.loads(json.dumps(estimate(command.split(), environment).observation()))
        (told,) = source.parse(Record(source.SOURCE, payload))
        assert isinstance(told, MemoryEstimated)
        story.tell(told)
    story.tell(*(gpu(name, index) for index, name in enumerate(names)))
    for step in range(1, 31):
        story.wait(seconds)
        story.tell(Iteration(0, step, 100, f"iteration {step}"))
    return story


def lines(story: Story) -> str:
    found = speed_json(story.engine.job)
    assert found is not None
    return "\n".join(speed_lines(found))


def test_tokens_a_second_and_the_share_of_the_peak_are_shown_beside_published_runs() -> None:
    text = lines(job(DPO, 13.0, "NVIDIA H100 80GB HBM3"))

    assert "13 s a step, 315 tokens/s a GPU, 1.2 % of the peak of NVIDIA H100 80GB HBM3 (MFU)" in text
    assert "optimizer in host memory, 8,192 tokens: 13 s/it, 46 GiB" in text
    assert "https://github.com/modelscope/ms-swift/" in text


def test_a_job_is_compared_with_a_run_of_its_kind_on_the_same_gpus() -> None:
    """The seven-fold of 10.56 s."""
    text = lines(job(SFT + " --gradient_accumulation_steps 2", 73.9, "NVIDIA A800-SXM4-80GB"))
    assert "8 x A800, ZeRO 3, 8,192 tokens: 10.56 s/it, 58 GiB; this job does 14 % of its tokens" in text


def test_other_gpus_are_not_compared() -> None:
    assert "this job does" not in lines(job(SFT, 73.9, "NVIDIA H100 80GB HBM3"))


def test_samples_that_may_be_short_give_a_bound_and_no_comparison() -> None:
    text = lines(job(SFT.replace("--packing true", ""), 73.9, "NVIDIA A800-SXM4-80GB"))
    assert "at most" in text and "samples may be shorter" in text and "this job does" not in text


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "the GPU is not known"),
        (("Brand New GPU",), "the peak of Brand New GPU is not known"),
        (("NVIDIA H100 PCIe", "NVIDIA A30"), "GPUs of several kinds"),
    ],
)
def test_without_a_known_gpu_the_share_is_not_checked(names: tuple[str, ...], said: str) -> None:
    text = lines(job(DPO, 13.0, *names))
    assert f"not checked: {said}" in text and "MFU" not in text


def test_without_a_command_only_the_pace_is_known() -> None:
    story = job("", 13.0, "NVIDIA H100 80GB HBM3")
    found = speed_json(story.engine.job)
    assert found is not None and found["step_seconds"] == pytest.approx(13)
    assert found["mfu"] is None and "the command is not known" in found["not_checked"]
    assert speed_lines(found) == []


def test_before_the_first_steps_there_is_no_speed() -> None:
    assert speed_json(Story(()).engine.job) is None


def test_a_record_of_before_speed_was_reckoned_is_read() -> None:
    payload = {"basis": "b", "gpu": [], "host": [], "save": [], "checkpoint_bytes": 1}
    (told,) = source.parse(Record(source.SOURCE, payload))
    assert isinstance(told, MemoryEstimated) and told.speed is None


# -- of a command ------------------------------------------------------------------------------------------------


def test_a_model_of_which_nothing_is_published_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    main(["estimate", "--", "swift", "sft", "--model", "Llama-3.2-1B", "--max_length", "512"])
    assert "nothing published is known here for this model" in capsys.readouterr().out


def test_seconds_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--step-seconds", "0", "--", *SFT.split()]) == 2
