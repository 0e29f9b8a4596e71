"""transformers' own Trainer and TRL's DPOTrainer, under torchrun or accelerate."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from .act import kill_data_worker, kill_rank
from .assets import edit_config, pairs, texts, write_rows
from .case import Case, Version, script, swift_environment

__all__ = ["trainer_cases"]

_Prepare = Callable[[Path, Path], None]
_GPT2 = "{assets}/gpt2-tiny"
_DATA = "{work}/data/train.jsonl"
_TORCHRUN = ("{bin}/torchrun", "--nproc_per_node", "2")
_ACCELERATE = (
    "{bin}/accelerate",
    "launch",
    "--multi_gpu",
    "--num_processes",
    "2",
    "--main_process_port",
    "0",
)
FULL_DISK = (
    "unshare",
    "-m",
    "sh",
    "-c",
    'mkdir -p {work}/out && mount -t tmpfs -o size=600k tmpfs {work}/out && exec "$@"',
    "sh",
)
READ_ONLY = (
    "unshare",
    "-m",
    "sh",
    "-c",
    'mkdir -p {work}/out && mount -t tmpfs -o ro tmpfs {work}/out && exec "$@"',
    "sh",
)
NO_RIGHT = (
    "sh",
    "-c",
    "mkdir -p {work}/out && chown 65534 {work}/out && chmod 755 {work}/out && "
    'exec setpriv --bounding-set -dac_override --inh-caps -dac_override "$@"',
    "sh",
)


def _texts(work: Path, assets: Path) -> None:
    write_rows(work / "data" / "train.jsonl", texts())
    write_rows(work / "data" / "eval.jsonl", texts(16))


def _ragged(work: Path, assets: Path) -> None:
    write_rows(work / "data" / "train.jsonl", [{"text": "the river " * (1 + i % 7)} for i in range(64)])


def _pairs(work: Path, assets: Path) -> None:
    rows = [
        {
            "prompt": row["messages"][0]["content"],
            "chosen": row["messages"][1]["content"],
            "rejected": row["rejected_response"],
        }  # type: ignore[index]
        for row in pairs()
    ]
    write_rows(work / "data" / "train.jsonl", rows)


def _pairs_renamed(work: Path, assets: Path) -> None:
    rows: list[dict[str, object]] = [{"question": "a", "good": "b", "bad": "c"} for _ in range(32)]
    write_rows(work / "data" / "train.jsonl", rows)


def _mixed(work: Path, assets: Path) -> None:
    rows = texts(64)
    rows[40] = {"text": {"value": "a struct"}}
    write_rows(work / "data" / "train.jsonl", rows)


def _null(work: Path, assets: Path) -> None:
    rows = texts(64)
    rows[40] = {"text": None}
    write_rows(work / "data" / "train.jsonl", rows)


def _small_vocabulary(work: Path, assets: Path) -> None:
    _texts(work, assets)
    edit_config(assets / "gpt2-tiny", work / "model")
    tokenizer = json.loads((work / "model" / "tokenizer.json").read_text())
    next_id = 600  # past the 512 rows of the embedding
    tokenizer["added_tokens"].append(
        {
            "id": next_id,
            "content": "river",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": False,
        }
    )
    tokenizer["model"]["vocab"]["river"] = next_id
    (work / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))


def _checkpoint(damage: Callable[[Path], None]) -> _Prepare:
    """Resume from a checkpoint of the case hf-healthy, which must have run before, damaged in one way."""

    def prepare(work: Path, assets: Path) -> None:
        _texts(work, assets)
        shutil.copytree(work.parent / "hf-healthy" / "out" / "checkpoint-3", work / "out" / "checkpoint-3")
        damage(work / "out" / "checkpoint-3")

    return prepare


def _cut(name: str, keep: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:keep])

    return damage


def trainer_cases(version: Version) -> list[Case]:
    """Under torchrun, and those with the prefix acc- under `accelerate launch`."""
    launcher = _ACCELERATE if version.name.endswith("accelerate") else _TORCHRUN
    prefix = "acc-" if launcher is _ACCELERATE else "hf-"
    environment = swift_environment()
    environment.pop("NPROC_PER_NODE")

    def case(
        name: str,
        expect: str,
        why: str,
        prepare: _Prepare,
        *flags: str,
        model: str = _GPT2,
        wrap: tuple[str, ...] = (),
    ) -> Case:
        # One process resumes: with several, torch cannot place what was saved on cpu:0 (see ddp-resume).
        one = "--resume" in flags and name != "ddp-resume"
        words = script(
            "hf_train.py",
            *("--model", model, "--data", _DATA, "--out", "{work}/out"),
            *flags,
            launcher=("{bin}/python",) if one else launcher,
        )
        return Case(prefix + name, expect, why, words, environment, prepare, wrap=wrap)

    def acted(name: str, expect: str, why: str, act: Callable[..., None], *flags: str) -> Case:
        words = script(
            "hf_train.py", "--model", _GPT2, "--data", _DATA, "--out", "{work}/out", *flags, launcher=launcher
        )
        return Case(prefix + name, expect, why, words, environment, _texts, act, ranks=(1,))

    def dpo(name: str, expect: str, why: str, prepare: _Prepare, *flags: str) -> Case:
        words = script(
            "trl_dpo.py",
            "--model",
            "{assets}/qwen3-tiny",
            "--data",
            _DATA,
            "--out",
            "{work}/out",
            *flags,
            launcher=launcher,
        )
        return Case(f"{prefix}trl-{name}", expect, why, words, environment, prepare)

    eval_data = ("--eval-data", "{work}/data/eval.jsonl")
    return [
        case("healthy", "none", "nothing", _texts),
        case(
            "healthy-eval",
            "none",
            "with evaluation and load_best_model_at_end",
            _texts,
            *eval_data,
            "--eval-strategy",
            "steps",
            "--best",
        ),
        case("healthy-lora", "none", "LoRA with peft", _texts, "--lora"),
        case("healthy-bf16", "none", "bf16 and two map processes", _texts, "--bf16", "--num-proc", "2"),
        case(
            "healthy-resume",
            "none",
            "resumed from checkpoint-3",
            _checkpoint(lambda folder: None),
            "--resume",
            "{work}/out/checkpoint-3",
        ),
        dpo("healthy", "none", "DPO with TRL", _pairs),
        dpo("healthy-lora", "none", "DPO with TRL and LoRA", _pairs, "--lora"),
        case(
            "ddp-resume",
            "rank-died",
            "transformers maps the optimizer to cpu:0, which torch cannot load",
            _checkpoint(lambda folder: None),
            "--resume",
            "{work}/out/checkpoint-3",
        ),
        case(
            "wrong-column",
            "dataset-schema",
            "the script tokenises a column that the file lacks",
            _texts,
            "--column",
            "content",
        ),
        case(
            "unused-columns",
            "dataset-schema",
            "untokenised rows: no column fits the model's forward",
            _texts,
            "--untokenized",
        ),
        case(
            "kept-columns",
            "dataset-schema",
            "untokenised rows with remove_unused_columns=False",
            _texts,
            "--untokenized",
            "--keep-columns",
        ),
        case("mixed-types", "dataset-schema", "line 41 has an object in the text column", _mixed),
        case("null-text", "dataset-format", "line 41 has null in the text column", _null),
        case(
            "no-pad-token",
            "rank-died",
            "a collator that pads, and a tokenizer without a pad token",
            _texts,
            "--no-pad-token",
        ),
        case(
            "ragged-rows",
            "dataset-format",
            "rows of different length and a collator that does not pad",
            _ragged,
            "--padding",
            "none",
        ),
        case(
            "token-out-of-range",
            "rank-died",
            "the tokenizer has a token id beyond the model's embedding",
            _small_vocabulary,
            model="{work}/model",
        ),
        case(
            "no-eval-set",
            "rank-died",
            "evaluation wanted and no evaluation set",
            _texts,
            "--eval-strategy",
            "steps",
        ),
        case("best-without-eval", "rank-died", "load_best_model_at_end without evaluation", _texts, "--best"),
        case("no-data-file", "dataset-format", "the data file does not exist", lambda work, assets: None),
        case(
            "unknown-optimizer",
            "rank-died",
            "an optimizer that does not exist",
            _texts,
            "--optim",
            "adamw_muon",
        ),
        case(
            "no-model",
            "checkpoint-missing",
            "the model folder does not exist",
            _texts,
            model="{work}/missing",
        ),
        case(
            "resume-missing",
            "checkpoint-missing",
            "resume from a folder that does not exist",
            _texts,
            "--resume",
            "{work}/out/checkpoint-9",
        ),
        case(
            "resume-cut-optimizer",
            "checkpoint-corrupt",
            "optimizer.pt is cut off",
            _checkpoint(_cut("optimizer.pt", 4000)),
            "--resume",
            "{work}/out/checkpoint-3",
        ),
        case(
            "resume-cut-weights",
            "checkpoint-corrupt",
            "model.safetensors is cut off",
            _checkpoint(_cut("model.safetensors", 9000)),
            "--resume",
            "{work}/out/checkpoint-3",
        ),
        case(
            "resume-empty-state",
            "checkpoint-corrupt",
            "trainer_state.json is empty",
            _checkpoint(_cut("trainer_state.json", 0)),
            "--resume",
            "{work}/out/checkpoint-3",
        ),
        case(
            "nan-loss",
            "grad-nan",
            "a learning rate of 1e30: grad_norm is nan from step 2, and transformers shows the nan loss as 0.0",
            _texts,
            "--lr",
            "1e30",
        ),
        case(
            "full-disk",
            "checkpoint-write-error",
            "the output is a tmpfs of 600 kB; torch does not say why its write failed",
            _texts,
            wrap=FULL_DISK,
        ),
        case(
            "read-only", "checkpoint-write-error", "the output is mounted read-only", _texts, wrap=READ_ONLY
        ),
        case(
            "no-right", "checkpoint-write-error", "the output belongs to somebody else", _texts, wrap=NO_RIGHT
        ),
        acted(
            "worker-killed",
            "dataloader-worker-died",
            "a DataLoader worker of rank 1 was killed with SIGKILL",
            kill_data_worker(1, "'loss'"),
            "--steps",
            "5000",
        ),
        acted(
            "rank-killed",
            "rank-died",
            "rank 1 was killed with SIGKILL in the steps",
            kill_rank(1, "'loss'"),
            "--steps",
            "5000",
        ),
        dpo(
            "wrong-columns",
            "dataset-schema",
            "DPO on rows without prompt, chosen and rejected",
            _pairs_renamed,
        ),
    ]
