"""Commands as they are copied from one version of ms-swift to another: what they are told before the run."""

from __future__ import annotations

import dataclasses
import importlib
import shlex
from pathlib import Path

import pytest

from diag.knowledge import swift_flags, table
from diag.launch.launchers.command import read_command
from diag.preflight.line import Line
from diag.preflight.software.argument_classes import ArgumentClasses, Unresolved
from diag.preflight.software.ask import Software
from diag.preflight.software.target import Target
from diag.preflight.software.trainer import find_trainer
from diag.preflight.software.trainer_flags import Trainer, call_of, check_flags
from tests.mission.cases import Case

UNKNOWN = Trainer(why="it is not here")
DPO = (
    "megatron rlhf --rlhf_type dpo --load M-mcore --dataset d --tensor_model_parallel_size 4 --expert_model_parallel_size 8 "
    "--micro_batch_size 1 --max_epochs 1 --lr 1e-5 --save out --save_interval 50 --num_workers 8"
)
LORA = "swift sft --model M --dataset d --lora_rank 8 --per_device_train_batch_size 1"


def lines(command: str, version: str = "", folder: Path = Path()) -> list[Line]:
    call = call_of(read_command(shlex.split(command), {}, folder))
    assert call is not None
    trainer = Trainer(swift_flags.version(version), f"ms-swift {version}") if version else UNKNOWN
    return list(check_flags(call, trainer))


def told(command: str, version: str = "") -> str:
    """All that is a problem, with what to write instead."""
    return "\n".join(
        f"{one.said}\n{one.remedy}" for one in lines(command, version) if one.status == "problem"
    )


def case(rows: tuple[int, ...], had: str, command: str, version: str, told: tuple[str, ...]) -> Case:
    def said() -> list[str]:
        return [f"{one.status}: {one.said} -> {one.remedy}" for one in lines(command, version)]

    program = " ".join(shlex.split(command)[:2])
    return Case(rows, had, f"diag doctor --swift-version {version} -- {program} ...", said, told)


CASES = {
    "an old guide's LoRA": case(
        (5, 12), "--train_type lora of a guide for 3.x, under ms-swift 4.6", f"{LORA} --train_type lora", "4.6",
        ("problem: `swift sft` of ms-swift 4.6 does not take --train_type", "--tuner_type in place of --train_type"),
    ),
    "expert tensor parallel": case(
        (4, 12), "--expert_tensor_parallel_size under 3.6.4", f"{DPO} --expert_tensor_parallel_size 1", "3.6.4",
        ("does not take --expert_tensor_parallel_size", "ms-swift>=3.7,<4.0"),
    ),
    "packed DPO": case(
        (12,), "--packing true for DPO under 3.7.1", f"{DPO} --packing true", "3.7.1",
        ("before 3.8 does not support packing of DPO's pairs", "leave --packing out"),
    ),
    "ZeRO and FSDP": case(
        (12,), "--deepspeed zero2 beside --fsdp auto_wrap", f"{LORA} --train_type lora --deepspeed zero2 --fsdp auto_wrap", "3.7",
        ("--deepspeed and --fsdp exclude each other", "leave one of the two out"),
    ),
    "a file": case(
        (12, 18), "python -m torch.distributed.run swift/cli/_megatron/rlhf.py --config config.yaml",
        "torchrun --nproc_per_node 8 swift/cli/_megatron/rlhf.py --config c.yaml", "4.6",
        ("only `megatron rlhf` itself reads a file in place of flags", "`megatron rlhf c.yaml`"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_person_is_told(name: str) -> None:
    CASES[name].check()


@pytest.mark.parametrize(
    ("command", "version"),
    [
        (f"{LORA} --train_type lora", "3.7"),
        (f"{LORA} --train_type lora", "4.0"),
        (f"{LORA} --tuner_type lora --deepspeed zero3", "4.6"),
        (f"{LORA} --tuner_type lora --fsdp fsdp2", "4.6"),
        (f"{LORA} --train_type full --fsdp 'full_shard auto_wrap'", "3.7"),
        ("swift sft --model_type qwen --model_id_or_path M --sft_type lora --dtype bf16 --dataset d --deepspeed default-zero2", "2.6"),
        (f"{DPO} --expert_tensor_parallel_size 1", "3.7"),
        (f"{DPO} --packing true", "3.8"),
        ("megatron rlhf --rlhf_type dpo --mcore_model M --dataset d --output_dir out --save_steps 50 --num_train_epochs 1", "4.6"),
        ("swift export --model M --to_mcore true --output_dir out", "3.7"),
        ("torchrun --nproc_per_node 4 swift/cli/sft.py --model M --dataset d --train_type lora", "3.7"),
        (f"{LORA} --no_gradient_checkpointing --learning-rate 1e-4 --lora_alp 16", "4.6"),
    ],
)  # fmt: skip
def test_command_that_its_version_takes_is_left_alone(command: str, version: str) -> None:
    assert [one.status for one in lines(command, version)] == ["ok"]


@pytest.mark.parametrize(
    ("command", "version", "wanted"),
    [
        (f"{LORA} --train_type lora", "4.6", ["remaining_argv: ['--train_type', 'lora']", "--tuner_type in place of --train_type"]),
        (f"{LORA} --sft_type lora", "3.7", ["--train_type in place of --sft_type, which 2.0 to 2.6 take"]),
        (f"{LORA} --tuner_type lora", "3.12", ["--train_type in place of --tuner_type", "pip install 'ms-swift>=4.0'"]),
        (f"{LORA} --quantization_bit 4", "3.7", ["--quant_method bnb --quant_bits 4"]),
        (f"{LORA} --model_id_or_path M", "4.6", ["--model in place of --model_id_or_path"]),
        (f"{LORA} --use_fsdp --fsdp full_shard", "3.7", ["['--use_fsdp']", "--fsdp alone turns FSDP on"]),
        (f"{LORA} --tensor_model_parallel_size 2", "4.6", ["it is a flag of `megatron sft`"]),
        (f"{LORA} --learning_rte 1e-4", "4.6", ["did you mean --learning_rate by --learning_rte?"]),
        ("swift infer --model_id M --device_map auto --offload_folder o", "4.6",
         ["--model in place of --model_id", "--device_map auto"]),
        ("megatron sft --load M --dataset d --tensor_parallel_size 4 --learning_rate 1e-4", "3.7",
         ["--tensor_model_parallel_size in place of --tensor_parallel_size", "--lr in place of --learning_rate"]),
        ("megatron sft --load M --dataset d --per_device_train_batch_size 1", "3.7", ["--micro_batch_size in place of"]),
        (f"{DPO} --expert_tensor_parallel_size 1", "3.6.4",
         ["does not take --expert_tensor_parallel_size", "which 3.7 and later take", "ms-swift>=3.7,<4.0"]),
        (DPO, "4.6", ["--save_steps in place of --save_interval", "--dataloader_num_workers in place of --num_workers",
                      "--output_dir in place of --save", "error: ambiguous option: --load could match --load_args"]),
        (DPO, "3.5", ["has no `megatron rlhf`, which 3.6 and later have", "KeyError: 'rlhf'"]),
        ("torchrun --nproc_per_node 8 swift/cli/_megatron/rlhf.py --config c.yaml", "4.6",
         ["only `megatron rlhf` itself reads a file", "['--config', 'c.yaml']", "`megatron rlhf c.yaml`"]),
        ("swift sft c.yaml", "3.7", ["reads no file by `c.yaml`", "3.10 or later"]),
        ("swift sft --config c.yaml", "4.6", ["reads no file by `--config c.yaml`", "`swift sft c.yaml`"]),
        ("swift sft c.yaml", "4.0", ["`swift sft --config c.yaml`"]),
    ],
)  # fmt: skip
def test_flag_that_the_version_does_not_take_is_named_with_what_to_write(
    command: str, version: str, wanted: list[str]
) -> None:
    said = told(command, version)

    assert [text for text in wanted if text not in said] == []


@pytest.mark.parametrize(
    ("command", "version", "wanted"),
    [
        (f"{LORA} --tuner_type lora --deepspeed zero2 --fsdp fsdp2", "4.6", "FSDP2 is not compatible with DeepSpeed"),
        (f"{LORA} --train_type lora --deepspeed zero2 --fsdp auto_wrap", "3.7", "Using --fsdp xxx together with --deepspeed"),
        (f"{LORA} --tuner_type lora --fsdp 'full_shard auto_wrap'", "4.6", "--fsdp takes fsdp2, a JSON file"),
        (f"{LORA} --train_type lora --deepspeed default-zero2", "3.7", "a name of 2.x"),
        (f"{DPO} --packing true", "3.7.1", "before 3.8 does not support packing of DPO's pairs"),
        ("megatron rlhf --rlhf_type grpo --load M", "3.7", "invalid choice: 'grpo'"),
    ],
)  # fmt: skip
def test_values_that_do_not_go_together_are_named(command: str, version: str, wanted: str) -> None:
    assert wanted in told(command, version)


@pytest.mark.parametrize(
    ("command", "version"),
    [
        (f"{LORA} --train_type lora --deepspeed none --fsdp full_shard", "3.7"),
        (f"{DPO} --packing false", "3.7"),
        ("megatron sft --load M --dataset d --packing true", "3.7"),
        ("megatron rlhf --rlhf_type grpo --load M --dataset d", "3.11"),
    ],
)
def test_values_that_go_together_are_left_alone(command: str, version: str) -> None:
    assert told(command, version) == ""


def test_of_an_unknown_version_it_is_said_whose_flags_they_are() -> None:
    (one,) = lines(f"{DPO} --expert_tensor_parallel_size 1")

    assert one.status == "not checked"
    assert "CMD's flags are those of ms-swift 3.7 to 3.12" in one.said
    assert "--swift-version" in one.remedy


def test_of_an_unknown_version_what_no_version_takes_is_a_problem_and_what_some_refuse_a_note() -> None:
    found = lines(f"{LORA} --train_type full --use_fsdp --fsdp 'full_shard auto_wrap'")

    assert [(one.status, text) for one, text in zip(found, ("--use_fsdp", "3.0 to 4.0", "since 3.12"), strict=True)
            if text in one.said] == [("problem", "--use_fsdp"), ("not checked", "3.0 to 4.0"), ("note", "since 3.12")]  # fmt: skip


def test_flag_that_nothing_is_known_of_is_no_problem_where_the_version_is_unknown() -> None:
    # A version after those recorded may have it.
    assert {one.status for one in lines(f"{LORA} --quite_a_new_thing 1")} == {"note", "not checked"}


def test_flags_of_two_versions_at_once_are_a_problem_in_any() -> None:
    assert "no one version" in told("megatron sft --max_epochs 1 --save_steps 5 --dataset d")


def test_version_that_is_not_recorded_is_not_checked() -> None:
    (one,) = lines(LORA, "9.1")

    assert (one.status, "not among the versions" in one.said) == ("not checked", True)


def test_flags_are_only_warned_of_where_cmd_asks_for_that() -> None:
    (one,) = lines(f"{LORA} --train_type lora --ignore_args_error true", "4.6")

    assert (one.status, "they do nothing" in one.said) == ("note", True)


def test_file_in_place_of_flags_is_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("ENV: {A: 1}\nmodel: M\ntrain_type: lora\ndataset: [a, b]\n")

    (new,) = lines("swift sft c.yaml --lora_rank 8", "4.6", tmp_path)
    (old,) = lines("swift sft --lora_rank 8 --config c.yaml", "3.12", tmp_path)

    assert "does not take --train_type:" in new.said
    assert (old.status, "4 flags" in old.said) == ("ok", True)


@pytest.mark.parametrize(
    "command", ["python train.py --train_type lora", "torchrun t.py", "bash none.sh", "swift"]
)
def test_what_is_no_command_of_ms_swift_with_flags_of_its_own_is_left_alone(command: str) -> None:
    assert call_of(read_command(shlex.split(command), {})) is None


def trainer(command: str, software: Software | None = None, told: str = "") -> Trainer:
    words = shlex.split(command)
    read = read_command(words, {})
    call = call_of(read)
    assert call is not None
    target = Target("/env/python", "", "swift", tuple(words), {})
    return find_trainer(call, read, target, software, told)


def test_version_is_in_the_name_of_an_image() -> None:
    image = "hub/modelscope-repo/modelscope:ubuntu22.04-cuda12.6.3-py311-torch2.7.1-vllm0.10.0-swift3.7.1"

    assert trainer(f"docker run {image} swift sft --model M").version == (3, 7)
    assert "is not known" in trainer("docker run training:7 swift sft --model M").why
    assert trainer("docker run training:7 swift sft --model M", told="4.6.0").version == (4, 6)


def packages(folder: Path) -> dict[str, Path]:
    """ms-swift and transformers as small as they can be."""
    files = {
        "swift/arguments/sft_args.py": "from dataclasses import dataclass, field\nfrom typing import ClassVar\n"
        "from swift.trainers import Seq2SeqTrainingArguments\nfrom .base_args import Base\n\n\n@dataclass\n"
        "class SftArguments(Base, Seq2SeqTrainingArguments):\n    adapters: list = field(default_factory=list)\n"
        "    hidden: int = field(init=False, default=1)\n    shared: ClassVar[int] = 1\n    constant = 3\n",
        "swift/arguments/base_args.py": "import dataclasses\n\n\nclass Plain:\n    ignored: int = 0\n\n\n"
        "@dataclasses.dataclass\nclass Base(Plain):\n    model: str = ''\n",
        "swift/trainers/arguments.py": "from dataclasses import dataclass\n"
        "from transformers import Seq2SeqTrainingArguments as HfArguments\n\n\n@dataclass\n"
        "class Seq2SeqTrainingArguments(HfArguments):\n    tuner: str = ''\n",
        "transformers/training_args.py": "from dataclasses import dataclass\n\n\n@dataclass\n"
        "class Seq2SeqTrainingArguments:\n    seed: int = 0\n",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {name: folder / name for name in ("swift", "transformers")}


def test_fields_are_those_that_a_dataclass_takes(tmp_path: Path) -> None:
    classes = ArgumentClasses(packages(tmp_path))

    assert classes.of_command("swift", "sft") == {"adapters", "model", "tuner", "seed"}


def test_class_that_is_not_there_is_not_guessed(tmp_path: Path) -> None:
    classes = ArgumentClasses(packages(tmp_path))
    (tmp_path / "transformers" / "training_args.py").write_text("")

    with pytest.raises(Unresolved, match="Seq2SeqTrainingArguments of transformers"):
        classes.of_command("swift", "sft")
    with pytest.raises(Unresolved, match="swift rlhf"):
        classes.of_command("swift", "rlhf")


def test_what_is_installed_counts_before_the_table(tmp_path: Path) -> None:
    modules: dict[str, str | None] = {
        name: str(path / "__init__.py") for name, path in packages(tmp_path).items()
    }
    there = Software("3.11.7", "/env/python", {"ms-swift": "9.0.0"}, {}, modules, {})

    found = trainer("swift sft --model M", there)

    assert found.flags == {"adapters", "model", "tuner", "seed"}
    assert "has no ms-swift" in trainer("swift sft --model M", dataclasses.replace(there, installed={})).why


def test_table_and_reading_agree_with_the_package_itself() -> None:
    """Of the ms-swift that the bundled job runs with, imported."""
    swift = pytest.importorskip("swift")
    transformers = importlib.import_module("transformers")
    classes = {
        "sft": "SftArguments",
        "rlhf": "RLHFArguments",
        "infer": "InferArguments",
        "export": "ExportArguments",
    }
    arguments = importlib.import_module("swift.arguments")
    folders = {one.__name__: Path(one.__file__).parent for one in (swift, transformers)}
    version = swift_flags.version(swift.__version__)
    assert version is not None

    for verb, name in classes.items():
        fields = {one.name for one in dataclasses.fields(getattr(arguments, name)) if one.init}

        assert ArgumentClasses(folders).of_command("swift", verb) == fields
        assert fields - swift_flags.flags(f"swift {verb}", version) == set()


def test_advice_is_of_flags_that_there_are() -> None:
    advice = table("swift_flag_advice")
    there = swift_flags.all_flags("swift") | swift_flags.all_flags("megatron")

    for group in advice["same"]:
        assert there & set(group.split()), group
    for row in advice["values"]:
        assert set(row["when"]) <= there
        assert all(swift_flags.known(command) for command in row["of"].split(", "))
        assert row["said"].format(**row["when"])
