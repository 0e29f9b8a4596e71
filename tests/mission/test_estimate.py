"""Will it fit? The commands that people have, as they have them, and what they must be told. Measured figures are those
that ms-swift publishes with its own scripts (diag/preflight/estimate/published.yaml)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.cli.main import main
from diag.launch.launchers.command import CommandError
from diag.preflight.estimate import Estimate, Machine, estimate
from diag.preflight.estimate.model_files import table_name
from diag.preflight.estimate.trust import PUBLISHED
from diag.text.tables import load_table
from tests.mission.cases import Case, printed

GIB = 1 << 30
PACKED = "--packing true --max_length 8192 --micro_batch_size 1 --sequence_parallel true --no_save_optim true"
FULL = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
OFFLOADED = "--optimizer_cpu_offload true --optimizer_offload_fraction 1 --use_precision_aware_optimizer true"
# 8 GPUs, the flags of ms-swift 3.x, the model a folder that was converted
DPO = (
    f"megatron rlhf --rlhf_type dpo --load /data/Qwen3-30B-A3B-Instruct-2507-mcore {PACKED} {FULL} {OFFLOADED} "
    "--tensor_model_parallel_size 4 --expert_model_parallel_size 8 --expert_tensor_parallel_size 1 "
    "--moe_aux_loss_coeff 1e-3 --global_batch_size 4 --cross_entropy_loss_fusion true --attention_backend flash "
    "--num_workers 8 --max_epochs 1"
)
NODE = Machine(gpus=8, gpu_bytes=80 * GIB, host_bytes=1024 * GIB, gpu_from="here", host_from="here")


BARE = {"NPROC_PER_NODE": "8", "NNODES": "1", "PATH": "/nonexistent", "HOME": "/nonexistent"}
LORA = "swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora --dataset x#500"


def printed_of(command: str, *options: str) -> list[str]:
    lines = [line.strip() for line in printed("estimate", *options, "--", *command.split(), **BARE)]
    return [line for line in lines if line]


def estimated(  # noqa: PLR0917
    rows: tuple[int, ...], had: str, command: str, given: tuple[str, ...], told: tuple[str, ...],
    silent: tuple[str, ...] = (), unproven: str = "",
) -> Case:  # fmt: skip
    return Case(
        rows, had, command, lambda: printed_of(*given), told, silent, unproven=unproven,
        said_in_chinese=lambda: printed_of(*given, "--lang", "zh"),
    )  # fmt: skip


CASES = {
    "the DPO of 30B-A3B": estimated(
        (17,), "the DPO of Qwen3-30B-A3B on 8 GPUs, published as 8 x 65 GiB: does it fit into 64 GiB each, and 1 TiB?",
        "diag estimate --gpu-memory 64GiB --host-memory 1TiB -- megatron rlhf ...",
        (DPO, "--gpu-memory", "64GiB", "--host-memory", "1TiB"),
        ("one GPU needs 60.4 GiB +- 15 %, of 64 GiB: tight", "first to try: ms-swift 3.8.3 or newer: -15 GiB GPU (no slower)",
         "10 runs of its kind that ms-swift publishes"),
        unproven="this very command on such GPUs, by diag's own measurement",
    ),
    "1 TiB for its save": estimated(
        (3,), "the DPO of Qwen3-30B-A3B on a node of 1 TiB, at its first save",
        "diag estimate --gpu-memory 80GiB --host-memory 1TiB -- megatron rlhf ...",
        (DPO, "--gpu-memory", "80GiB", "--host-memory", "1TiB"),
        ("one node needs 822 GiB +- 25 %, of 1 TiB: tight", "they can be neither swapped out nor taken back"),
        unproven="host memory of more than two ranks",
    ),
    "LoRA without a length": estimated(
        (17,), "LoRA of Qwen2.5-7B on 80 GiB, without --max_length", "diag estimate --gpu-memory 80GiB -- swift sft ...",
        (LORA, "--gpu-memory", "80GiB"), ("fits up to 19,200 tokens a sequence", "first to try: "), ("does not fit",),
        unproven="LoRA, but for one run on one H100",
    ),
    "a new model": estimated(
        (17,), "a model that diag does not know, in a folder that is not here", "diag estimate --model Qwen2.5-72B -- swift sft ...",
        ("swift sft --model /mnt/our-own-72B --max_length 64", "--model", "Qwen2.5-72B"),
        ("one GPU needs", "72.7B parameters"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("NPROC_PER_NODE", "NNODES", "HF_HOME", "MODELSCOPE_CACHE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")


def of(command: str, machine: Machine = NODE, ranks: int = 8, **environment: str) -> Estimate:
    env = {"NPROC_PER_NODE": str(ranks), "PATH": "/nonexistent", "HOME": "/nonexistent", **environment}
    return estimate(command.split(), env, machine=machine)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["estimate", *words])
    return code, " ".join(capsys.readouterr().out.split())


# -- the model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen3-30B-A3B-Instruct-2507-mcore", "qwen3-30b-a3b"),
        ("/models/Qwen2.5-7B-Instruct-mcore/", "qwen2.5-7b"),
        ("out/Qwen2.5-14B_mcore", "qwen2.5-14b"),
        ("Qwen3-8B-mcore-tp2-pp2", "qwen3-8b"),
        ("Qwen3-MCorelia-8B", None),
        ("mcore", None),
    ],
)
def test_a_folder_is_known_by_its_model_whatever_format_it_is_named_after(
    name: str, known: str | None
) -> None:
    assert table_name(name) == known


def test_the_folder_beside_a_converted_one_is_read(tmp_path: Path) -> None:
    for folder in ("mine", "mine-mcore"):
        (tmp_path / folder).mkdir()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {"model_type": "llama", "vocab_size": 1000, **sizes}
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))

    found = of(f"megatron sft --load {tmp_path}/mine-mcore --max_length 64")

    assert found.plan.shape.hidden == 64
    assert any("mine-mcore is read as" in note for note in found.notes)


def test_another_model_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--", "swift", "sft", "--model", "/mnt/our-own-72B", "--max_length", "64"]
    assert main(["estimate", *words]) == 2
    assert "hint: diag estimate --model" in capsys.readouterr().err

    code, text = told(capsys, "--model", "Qwen2.5-72B", *words)

    assert (code, "72.7B parameters" in text) == (0, True)


# -- what was measured ------------------------------------------------------------------------------------

SWIFT_4 = f"{PACKED} --cross_entropy_loss_fusion true --attention_backend flash --tuner_type full"
# (command, GPUs of a node, nodes, GiB published)
RUNS = [
    (f"megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-30B-A3B {SWIFT_4} {FULL} {OFFLOADED} --global_batch_size 4 "
     "--tensor_model_parallel_size 4 --expert_model_parallel_size 8", 8, 1, 46),
    (f"megatron rlhf --rlhf_type dpo --model Qwen/Qwen3-4B {SWIFT_4} {FULL} --global_batch_size 4 "
     "--tensor_model_parallel_size 4", 4, 1, 28),
    (f"megatron rlhf --rlhf_type kto --model Qwen/Qwen2.5-7B {SWIFT_4} {FULL} --global_batch_size 4 "
     "--tensor_model_parallel_size 4", 4, 1, 43),
    (f"megatron sft --model Qwen/Qwen3-30B-A3B {SWIFT_4} {FULL} --global_batch_size 16 --pipeline_model_parallel_size 2 "
     "--expert_model_parallel_size 8", 8, 2, 60),
    (f"megatron sft --model Qwen/Qwen3-30B-A3B {SWIFT_4} {FULL} --global_batch_size 4 --tensor_model_parallel_size 4 "
     "--pipeline_model_parallel_size 2 --expert_model_parallel_size 4", 8, 1, 76),
    (f"megatron sft --model Qwen/Qwen3-30B-A3B {SWIFT_4} {FULL} {OFFLOADED} --global_batch_size 16 "
     "--expert_model_parallel_size 4", 4, 1, 75),
    (f"megatron sft --model Qwen/Qwen2.5-14B {SWIFT_4} --global_batch_size 16 --tensor_model_parallel_size 4", 8, 1, 64),
    (f"megatron sft --model Qwen/Qwen2.5-72B {SWIFT_4} {FULL} {OFFLOADED} --global_batch_size 16 "
     "--tensor_model_parallel_size 8", 8, 1, 65),
    (f"megatron sft --model Qwen/Qwen3-32B {SWIFT_4} {FULL} --global_batch_size 16 --tensor_model_parallel_size 8", 8, 1, 80),
    (f"megatron sft --model Qwen/Qwen2.5-7B {SWIFT_4} {FULL} --global_batch_size 8 --tensor_model_parallel_size 4 "
     "--max_length 32768", 4, 1, 50),
]  # fmt: skip


DEEPSPEED = "swift sft --tuner_type full --packing true --attn_impl flash_attn --max_length 8192 --deepspeed"
LIGER = f"{DEEPSPEED} zero3 --use_liger_kernel true"
UNDER_ZERO = [
    (f"{DEEPSPEED} zero3 --model Qwen/Qwen2.5-14B", 8, 1, 58),
    (f"{LIGER} --model Qwen/Qwen2.5-7B", 4, 1, 44),
    (f"{LIGER} --model Qwen/Qwen2.5-7B", 4, 1, 42),
    (f"{LIGER} --model Qwen/Qwen2.5-7B --max_length 16384", 4, 1, 43),
    (f"{LIGER} --model Qwen/Qwen2.5-7B --max_length 16384", 4, 1, 42),
    (f"{LIGER} --model Qwen/Qwen2.5-32B", 8, 1, 80),
]
# Cards of 80 GiB that were full: it fitted, and what it needed is not known.
FILLED = [
    (f"{DEEPSPEED} zero2 --model Qwen/Qwen2.5-14B", 1),
    (f"{DEEPSPEED} zero3 --model Qwen/Qwen3-30B-A3B", 2),
]
KINDS = [("megatron_full", *run) for run in RUNS] + [("zero_full", *run) for run in UNDER_ZERO]


@pytest.mark.parametrize(("name", "command", "ranks", "nodes", "published"), KINDS)
def test_the_estimate_is_within_what_is_said_of_it_of_published_runs(
    name: str, command: str, ranks: int, nodes: int, published: int
) -> None:
    found = of(command, ranks=ranks, NNODES=str(nodes))

    kind = load_table(PUBLISHED)["kinds"][name]
    off = found.gpu_bytes / GIB / published - 1
    assert kind["least"] - 0.005 <= off <= kind["most"] + 0.005
    assert abs(off) <= found.trust.gpu
    assert kind["runs"] == sum(each[0] == name for each in KINDS)
    assert any(row.get("gib") == published for row in load_table(PUBLISHED)["runs"])


@pytest.mark.parametrize(("command", "nodes"), FILLED)
def test_runs_that_filled_their_cards_are_said_to_fit_and_are_no_measure(command: str, nodes: int) -> None:
    found = of(command, NNODES=str(nodes))

    assert found.gpu_verdict in ("fits", "tight")
    assert any("filled its cards" in text for text in found.trust.words) is bool(found.plan.shape.experts)
    assert sum(bool(run.get("filled")) for run in load_table(PUBLISHED)["runs"]) == len(FILLED)


def test_before_3_8_3_the_reference_model_has_gradients_too() -> None:
    """Published as 8 x 65 GiB then, and 46 since."""
    old = of(DPO)
    in_image = "docker run --gpus all -e NPROC_PER_NODE=8 hub/modelscope:cuda12.6-vllm0.10.0-swift{} "
    by_image = {version: of(in_image.format(version) + DPO) for version in ("3.7.1", "3.8.3")}

    assert abs(old.gpu_bytes / GIB / 65 - 1) < 0.15
    for version, has in (("3.7.1", True), ("3.8.3", False)):
        terms = {term.name for need in by_image[version].needs for term in need.terms}
        assert ("gradients of the reference" in terms) is has
    assert "3.7.1, by the image's name" in by_image["3.7.1"].plan.trainer
    assert abs(by_image["3.8.3"].gpu_bytes / GIB / 46 - 1) < 0.15
    newer = next(item for item in old.advice if item.flags == "ms-swift 3.8.3 or newer")
    assert round(newer.gpu_bytes / GIB) == -15


def test_a_card_of_64_gib_is_not_promised_to_hold_what_took_65() -> None:
    found = of(DPO, machine=Machine(gpus=8, gpu_bytes=64 * GIB, host_bytes=2048 * GIB))
    assert found.gpu_verdict == "tight"


def test_it_is_said_what_was_measured_and_how_far_the_command_is_from_it() -> None:
    far = of(DPO).trust
    near = of(f"megatron sft --model Qwen/Qwen3-0.6B {PACKED}", ranks=1).trust
    unmeasured = of("swift sft --model Qwen/Qwen2.5-7B --tuner_type lora --max_length 2048", ranks=1).trust

    assert "not near them (30.5B parameters, 8 ranks)" in far.words[0]
    assert "CMD is near them" in near.words[0]
    assert near.gpu < far.gpu < unmeasured.gpu and near.host < far.host


# -- host memory ------------------------------------------------------------------------------------------


def test_a_host_that_would_be_filled_to_four_fifths_is_tight_and_it_is_said_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "8")
    verdicts = {}
    for size in (2048, 1024, 700):
        options = ["--gpu-memory", "80GiB", "--host-memory", f"{size}GiB"]
        code, text = told(capsys, *options, "--", *DPO.split())
        verdicts[size] = (code, "pinned: they can be neither swapped out" in text)

    assert verdicts == {2048: (0, False), 1024: (0, True), 700: (10, True)}
    assert of(DPO).host_verdict == "tight"


def test_forks_are_named_where_the_save_is_sharded() -> None:
    from diag.preflight.estimate.report import text

    saves = of(
        DPO.replace("--no_save_optim true", ""),
        machine=Machine(gpus=8, gpu_bytes=80 * GIB, host_bytes=1000 * GIB),
    )
    assert "vm.overcommit_memory" in text(saves)


# -- how long sequences may be -----------------------------------------------------------------------------


def test_a_command_without_a_limit_is_told_up_to_which_length_it_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "4")
    code, text = told(capsys, "--gpu-memory", "80GiB", "--", *LORA.split())

    found = of(LORA, ranks=4)
    longest = found.longest_sequence
    assert code == 0 and found.gpu_verdict == "tight" and found.fits
    assert longest is not None and 8_000 < longest < 32_768
    assert f"fits up to {longest:,} tokens a sequence" in text
    assert "CMD sets no --max_length" in text and "does not fit" not in text
    assert of(f"{LORA} --max_length {longest}", ranks=4).gpu_bytes < 80 * GIB
    assert of(f"{LORA} --max_length {2 * longest}", ranks=4).gpu_bytes > 80 * GIB


def test_a_limit_that_is_given_and_too_long_does_not_fit() -> None:
    found = of(f"{LORA} --max_length 32768", ranks=4)
    assert found.gpu_verdict == "does not fit" and found.longest_sequence


def test_what_fits_with_no_length_does_not_fit() -> None:
    found = of(LORA, machine=Machine(gpus=1, gpu_bytes=8 * GIB), ranks=1)
    assert (found.longest_sequence, found.gpu_verdict) == (0, "does not fit")


def test_what_fits_is_told_no_length() -> None:
    assert (
        of(DPO, machine=Machine(gpus=8, gpu_bytes=64 * GIB)).longest_sequence is None
    )  # tight, at its full length
    assert of(f"{LORA} --max_length 2048", ranks=4).longest_sequence is None


# -- what to change -----------------------------------------------------------------------------------------


def test_the_three_cheapest_changes_are_priced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "8")
    sizes = ["--gpu-memory", "48GiB", "--host-memory", "2TiB"]
    main(["estimate", *sizes, "--", *DPO.split()])
    lines = capsys.readouterr().out.splitlines()

    begin = lines.index("the cheapest ways to less GPU memory") + 1
    shown = [line.strip() for line in lines[begin : begin + 4] if line.strip()]
    assert len(shown) == 3
    assert all("GiB GPU" in line and line.endswith(")") for line in shown)
    assert not any("--train_type lora" in line for line in shown[:2])


def test_host_memory_is_not_bought_with_gpu_memory_that_is_not_there() -> None:
    from diag.preflight.estimate.cheapest import cheapest

    found = of(DPO, machine=Machine(gpus=8, gpu_bytes=64 * GIB, host_bytes=1024 * GIB))
    host = [item for item in found.advice if item.host_bytes < 0]
    chosen = cheapest(host, "host", found.short, found.free)
    assert chosen and all(item.flags != "--optimizer_offload_fraction 0.5" for item in chosen)


def test_the_global_batch_is_a_product(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    given = [
        "--per_device_train_batch_size",
        "4",
        "--gradient_accumulation_steps",
        "8",
        "--max_length",
        "512",
    ]
    _, text = told(capsys, "--", *LORA.split(), *given)
    assert "global batch: 64 samples = 4 x 8 x 2" in text
    assert of(f"{LORA} --max_length 512", ranks=2).batch == {
        "global": 16,
        "micro": 1,
        "accumulated": 8,
        "data_parallel": 2,
    }


# -- other commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["swift sft --config {}", "swift sft {} --lora_rank 16"])
def test_arguments_in_a_file_count(line: str, tmp_path: Path) -> None:
    file = tmp_path / "args.yaml"
    file.write_text(
        "model: Qwen/Qwen2.5-7B\nmax_length: 1024\ntuner_type: lora\nlora_rank: 8\ndataset: [a, b]\n"
    )

    found = of(line.format(file), ranks=1)

    assert found.plan.batch.sequence == 1024
    assert found.plan.tuning.lora_rank == (16 if "16" in line else 8)


@pytest.mark.parametrize("text", ["model: m\n```\n", "- a\n- b\n", "just words"])
def test_a_file_that_holds_no_arguments_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "args.yaml"
    file.write_text(text)
    with pytest.raises(CommandError, match=r"does not name a model; .*args\.yaml: it "):
        of(f"megatron rlhf --config {file}")


def test_a_conversion_needs_the_model_on_the_gpu_and_once_more_in_host_memory() -> None:
    command = (
        "swift export --model /m/Qwen3-30B-A3B --to_mcore true --test_convert_precision true --output_dir x"
    )
    found = of(command, CUDA_VISIBLE_DEVICES="0")
    assert 57 < found.gpu_bytes / GIB < 64 and found.gpu_verdict == "fits"
    assert 57 < found.host_bytes / GIB < 62
    assert round(found.checkpoint_bytes / GIB) == 57
    with pytest.raises(CommandError, match="not estimated"):
        of("swift export --model Qwen/Qwen3-8B --quant_method awq")


def test_an_inference_needs_weights_divided_over_the_gpus_and_keys_and_values() -> None:
    command = "swift infer --model Qwen/Qwen2.5-72B --max_model_len 8192"
    one, four, in_4_bits = (
        of(f"{command}{more}", CUDA_VISIBLE_DEVICES=gpus)
        for more, gpus in (("", "0"), ("", "0,1,2,3"), (" --quant_bits 4", "0"))
    )
    assert one.gpu_verdict == "does not fit" and four.gpu_verdict == "fits"
    assert 34 < four.gpu_bytes / GIB < 38
    assert 37 < in_4_bits.gpu_bytes / GIB < 43
    assert one.advice == () and one.observation()["speed"] is None


def test_doctor_still_says_that_an_inference_trains_nothing() -> None:
    from diag.launch.launchers.command import read_command

    command = read_command(["swift", "infer", "--model", "m"], {})
    assert (command.unread, command.verb) == ("`swift infer` trains nothing", "infer")


def test_the_json_has_what_the_text_has(capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str] = ["--json", "--gpu-memory", "80GiB", "--", *LORA.split()]
    assert main(["estimate", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["gpu"]["longest_sequence"] > 8_000 and found["trust"] and found["batch"]["global"] == 16
