"""All versions, and the cases of each."""

from __future__ import annotations

from dataclasses import replace

from .case import Case, Version
from .datasets import dataset_cases, megatron_dataset_cases
from .megatron_running import megatron_checkpoint_cases, megatron_healthy_cases
from .models import installation_cases, megatron_model_cases, model_cases
from .running import (
    healthy_cases,
    launch_cases,
    step_cases,
)
from .trainer import trainer_cases

__all__ = ["VERSIONS", "cases"]

_BROKEN = {
    "labs-nomsgspec": "no msgspec",
    "labs-nomcore": "no megatron-core",
    "labs-bridge162": "mcore-bridge 1.6.2 instead",
    "labs-bridge165": "mcore-bridge 1.6.5 instead",
    "labs-trl": "trl 0.11.4 instead",
    "labs-peft": "peft 0.10.0 instead",
}
VERSIONS = (
    Version("base"),
    Version("labs-s404", swift="4.0.4"),
    Version("labs-s312", swift="3.12.6", tuner="train_type"),
    Version("labs-s383", swift="3.8.3", transformers="4.56.2", tuner="train_type"),
    Version("labs-tf5", transformers="5.19.0", also="; huggingface_hub 1.5.0"),
    Version("base-accelerate", launcher="accelerate"),
    *(Version(name, also=f"; {what}") for name, what in _BROKEN.items()),
)


def cases(version: Version) -> list[Case]:
    if version.name in _BROKEN:
        return installation_cases(version)
    if version.name == "base-accelerate":
        return trainer_cases(version)
    if version.name == "labs-tf5":
        why = "transformers 5.19.0 wants a newer huggingface_hub than 1.5.0"
        return [replace(trainer_cases(version)[0], name="hf-old-hub", expect="version-mismatch", why=why)]
    found = [
        *healthy_cases(version),
        *dataset_cases(version),
        *model_cases(version),
        *step_cases(version),
        *launch_cases(version),
    ]
    if version.name == "base":
        found += [
            *megatron_healthy_cases(version),
            *megatron_dataset_cases(version),
            *megatron_model_cases(version),
        ]
        found += [*megatron_checkpoint_cases(version), *trainer_cases(version)]
    return found
