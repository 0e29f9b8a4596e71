"""What a case is: a command, what is done to it, and what a reader of its log should find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .act import Run

__all__ = ["Case", "Version", "megatron", "megatron_environment", "script", "swift"]


@dataclass(frozen=True, slots=True)
class Version:
    """One environment. `name` is its folder's; the rest is what `made_with` says."""

    name: str
    swift: str = "4.6.0"
    transformers: str = "4.57.6"
    tuner: str = "tuner_type"  # 3.x: train_type
    launcher: str = "torchrun"
    also: str = ""  # what else is unusual in it

    def made_with(self, case: Case) -> str:
        words = " ".join(case.command)
        launcher = self.launcher if f"/{self.launcher}" in words else "python"
        if "/megatron" in case.command[0]:
            program = (
                f"ms-swift {self.swift} megatron {case.command[1]}, megatron-core 0.16.1, mcore-bridge 1.6.1"
            )
        elif "hf_train.py" in words:
            program = f"transformers {self.transformers} Trainer, {launcher}"
        elif "trl_dpo.py" in words:
            program = f"trl 0.29.1 DPOTrainer, transformers {self.transformers}, {launcher}"
        else:
            program = f"ms-swift {self.swift} swift {case.command[1]}, transformers {self.transformers}"
        ranks = case.environment.get("NPROC_PER_NODE", "1" if launcher == "python" else "2")
        count = f", {ranks} ranks" if ranks.isdigit() and ranks != "1" else ", 1 rank"
        return f"{program}, torch 2.13.0{count}{self.also}"


@dataclass(frozen=True, slots=True)
class Case:
    """`command` and `environment` may name {work}, {assets}, {bin}, {repo}; `expect` is the root cause's
    finding id, or none."""

    name: str
    expect: str
    why: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path, Path], None] | None = None  # (the case's own folder, the shared assets)
    act: Callable[[Run], None] | None = None  # what is done to the job while it runs
    ranks: tuple[int, ...] = ()  # the culprits, where the log can tell them
    terminal: bool = False  # on a pseudo terminal instead of a pipe
    seconds: int = 500
    wrap: tuple[str, ...] = ()  # what starts the command: a mount namespace, fewer capabilities


_SWIFT: Mapping[str, str] = {
    "model": "{assets}/qwen3-tiny",
    "model_type": "qwen3",
    "template": "qwen3",
    "dataset": "{assets}/pairs.jsonl",
    "load_from_cache_file": "false",
    "split_dataset_ratio": "0",
    "torch_dtype": "float32",
    "per_device_train_batch_size": "2",
    "gradient_accumulation_steps": "2",
    "max_length": "128",
    "max_steps": "4",
    "logging_steps": "1",
    "save_steps": "2",
    "learning_rate": "1e-4",
    "dataloader_num_workers": "1",
    "dataset_num_proc": "2",
    "output_dir": "{work}/out",
    "check_model": "false",
    "attn_impl": "eager",
    "use_cpu": "true",
    "ddp_backend": "gloo",
}
_MEGATRON: Mapping[str, str] = {
    "model": "{assets}/qwen3-moe-tiny",
    "model_type": "qwen3_moe",
    "template": "qwen3",
    "tuner_type": "full",
    "dataset": "{assets}/pairs.jsonl",
    "split_dataset_ratio": "0",
    "check_model": "false",
    "micro_batch_size": "2",
    "global_batch_size": "8",
    "max_length": "128",
    "train_iters": "4",
    "logging_steps": "1",
    "save_steps": "4",
    "lr": "1e-4",
    "min_lr": "1e-5",
    "dataloader_num_workers": "1",
    "output_dir": "{work}/out",
    "expert_model_parallel_size": "2",
    "ddp_backend": "gloo",
}
_OFFLINE: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "HF_HOME": "{assets}/cache/hf",
    "MODELSCOPE_CACHE": "{assets}/cache/modelscope",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


def _words(base: Mapping[str, str], changed: Mapping[str, str | None]) -> tuple[str, ...]:
    # Order is kept: what a case changes is easy to see in the recorded command.
    flags = {name: value for name, value in {**base, **changed}.items() if value is not None}
    return tuple(word for name, value in flags.items() for word in (f"--{name}", value))


def swift(version: Version, verb: str = "rlhf", /, **changed: str | None) -> tuple[str, ...]:
    """`swift rlhf --rlhf_type dpo` or `swift sft` on the transformers path; None takes a flag away."""
    first = {"rlhf_type": "dpo"} if verb == "rlhf" else {}
    return ("{bin}/swift", verb, *_words({**first, **_SWIFT, version.tuner: "full"}, changed))


def megatron(verb: str = "rlhf", /, **changed: str | None) -> tuple[str, ...]:
    """`megatron rlhf --rlhf_type dpo` of ms-swift 4.x."""
    first = {"rlhf_type": "dpo"} if verb == "rlhf" else {}
    return ("{bin}/megatron", verb, *_words({**first, **_MEGATRON}, changed))


def swift_environment(ranks: int = 2, /, **more: str) -> dict[str, str]:
    return {**_OFFLINE, "NPROC_PER_NODE": str(ranks), **more}


def megatron_environment(ranks: int = 2, /, **more: str) -> dict[str, str]:
    """With the CPU layer of the bundled job armed."""
    return {**swift_environment(ranks), "DIAG_JOB_DEVICE": "cpu", "PYTHONPATH": "{repo}/diag_job/cpu", **more}


def script(
    name: str, *arguments: str, launcher: tuple[str, ...] = ("{bin}/torchrun", "--nproc_per_node", "2")
) -> tuple[str, ...]:
    """One of scripts/ under torchrun or another launcher."""
    return (*launcher, f"{{work}}/{name}", *arguments)
