"""All versions, and the cases of each."""

from __future__ import annotations

from .case import Case, Version
from .datasets import dataset_cases, megatron_dataset_cases
from .models import installation_cases, megatron_model_cases, model_cases
from .running import healthy_cases, launch_cases, megatron_checkpoint_cases, megatron_healthy_cases, step_cases
from .trainer import trainer_cases

__all__ = ["VERSIONS", "cases"]

_BASE = "ms-swift 4.6.0, megatron-core 0.16.1, mcore-bridge 1.6.1, transformers 4.57.6, torch 2.13.0"
_BROKEN = ("labs-nomsgspec", "labs-nomcore", "labs-bridge162", "labs-bridge165", "labs-trl", "labs-peft")
VERSIONS = (
    Version("base", _BASE),
    Version("labs-s404", "ms-swift 4.0.4, transformers 4.57.6, torch 2.13.0"),
    Version("labs-s312", "ms-swift 3.12.6, transformers 4.57.6, torch 2.13.0", tuner="train_type"),
    Version("labs-s383", "ms-swift 3.8.3, transformers 4.56.2, torch 2.13.0", tuner="train_type"),
    Version("labs-tf5", "transformers 5.19.0, ms-swift 4.6.0, mcore-bridge 1.6.1, torch 2.13.0"),
    Version("labs-tf450", "transformers 4.50.3, ms-swift 4.6.0, torch 2.13.0"),
    Version("base-accelerate", "accelerate launch 1.15.0, transformers 4.57.6, torch 2.13.0"),
    *(Version(name, _BASE) for name in _BROKEN),
)


def cases(version: Version) -> list[Case]:
    if version.name in _BROKEN:
        return installation_cases(version)
    if version.name == "base-accelerate":
        return trainer_cases(version)
    if version.name in ("labs-tf5", "labs-tf450"):
        return [*trainer_cases(version), *(installation_cases(version) if version.name == "labs-tf5" else [])]
    found = [
        *healthy_cases(version),
        *dataset_cases(version),
        *model_cases(version),
        *step_cases(version),
        *launch_cases(version),
    ]
    if version.name == "base":
        found += [*megatron_healthy_cases(version), *megatron_dataset_cases(version), *megatron_model_cases(version)]
        found += [*megatron_checkpoint_cases(version), *trainer_cases(version)]
    return found
