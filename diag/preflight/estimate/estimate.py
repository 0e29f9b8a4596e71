"""The estimate of a command. What is read is in `launch`, the `*_plan` modules and `model_files`, what is
computed in `gpu` and `host`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.advice import Advice, Combination, advise, combine
from diag.preflight.estimate.flag_names import FLAG_NAMES
from diag.preflight.estimate.flags import Flags, parse_flags
from diag.preflight.estimate.gpu import RankNeed, gpu_needs
from diag.preflight.estimate.hf_plan import hf_plan
from diag.preflight.estimate.host import checkpoint_bytes, host_terms, save_terms
from diag.preflight.estimate.launch import Launch, take_apart
from diag.preflight.estimate.machine import Machine
from diag.preflight.estimate.megatron_plan import megatron_plan
from diag.preflight.estimate.parameters import count
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.rules_of_thumb import Rule, rules

__all__ = ["GPU_UNCERTAINTY", "HOST_UNCERTAINTY", "Estimate", "estimate"]

# How far the totals may be off: more than in the runs of docs/estimate.md, which leave out less even routers,
# more ranks and networks for NCCL, and other versions.
GPU_UNCERTAINTY = 0.10
HOST_UNCERTAINTY = 0.15

_NAMES = {
    "sft": "SFT",
    "pt": "pre-training",
    "dpo": "DPO",
    "kto": "KTO",
    "grpo": "GRPO",
    "rm": "reward model",
    "gkd": "GKD",
}


@dataclass(frozen=True, slots=True)
class Estimate:
    plan: Plan
    launch: Launch
    needs: tuple[RankNeed, ...]  # of each pipeline stage; empty without a GPU
    host: tuple[MemoryTerm, ...]
    save: tuple[MemoryTerm, ...]
    checkpoint_bytes: int
    advice: tuple[Advice, ...]
    rules: tuple[Rule, ...]
    machine: Machine
    notes: tuple[str, ...]
    combination: Combination | None = None  # where it does not fit, and no one change of `advice` is enough

    @property
    def worst(self) -> RankNeed | None:
        return max(self.needs, key=lambda need: need.total, default=None)

    @property
    def gpu_bytes(self) -> int:
        return self.worst.total if self.worst else 0

    @property
    def host_bytes(self) -> int:
        return sum(term.size_bytes for term in self.host)

    @property
    def save_bytes(self) -> int:
        return sum(term.size_bytes for term in self.save)

    @property
    def gpu_verdict(self) -> str:
        """fits, tight, does not fit, or unknown."""
        return _verdict(self.gpu_bytes, _gpu_have(self.machine, self.plan), GPU_UNCERTAINTY)

    @property
    def host_verdict(self) -> str:
        """As of the GPU; a machine without GPUs is not the one that a job for GPUs will run on."""
        return _verdict(
            self.host_bytes + self.save_bytes, _host_have(self.machine, self.plan), HOST_UNCERTAINTY
        )

    @property
    def fits(self) -> bool:
        """False only where it is said that it does not."""
        return "does not fit" not in (self.gpu_verdict, self.host_verdict)

    @property
    def basis(self) -> str:
        """The model and the layout in words."""
        plan, layout = self.plan, self.plan.layout
        tuning = {"lora": f" with LoRA (rank {plan.tuning.lora_rank})", "freeze": " in part"}.get(
            plan.tuning.kind, ""
        )
        words = f"{plan.model} ({_parameters(count(plan.shape))} parameters), {_NAMES.get(plan.stage, plan.stage)}{tuning}; "
        words += f"{layout.processes} rank{_s(layout.processes)} on {layout.nodes} node{_s(layout.nodes)}: "
        if plan.framework == "megatron":
            words += f"TP {layout.tp} PP {layout.pp} CP {layout.cp} DP {layout.dp}" + (
                f" EP {layout.ep}" if plan.shape.experts else ""
            )
            words += ", sequence parallel" if layout.sequence_parallel else ""
        elif plan.sharding.kind == "zero":
            words += f"ZeRO {plan.sharding.stage}" + (", offloaded" if plan.sharding.optimizer_on_cpu else "")
        else:
            words += "FSDP" if plan.sharding.kind == "fsdp" else "data parallel"
        return words + f"; up to {plan.batch.tokens:,} tokens a micro-batch"

    def observation(self) -> dict[str, Any]:
        """The payload of a record of source "estimate"."""
        return {
            "basis": self.basis,
            "gpu": [_term_json(term) for term in (self.worst.terms if self.worst else ())],
            "host": [_term_json(term) for term in self.host],
            "save": [_term_json(term) for term in self.save],
            "checkpoint_bytes": self.checkpoint_bytes,
        }


def _parameters(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e8 else f"{number / 1e6:.2f} M"


def _s(number: int) -> str:
    return "" if number == 1 else "s"


def _term_json(term: MemoryTerm) -> dict[str, Any]:
    return {"name": term.name, "bytes": term.size_bytes, "formula": term.formula, "source": term.source}


def _gpu_have(machine: Machine, plan: Plan) -> int | None:
    return None if plan.on_cpu else machine.gpu_bytes


def _host_have(machine: Machine, plan: Plan) -> int | None:
    return machine.host_bytes if machine.is_node or plan.on_cpu else None


def _verdict(need: int, have: int | None, uncertainty: float) -> str:
    if have is None or not need:
        return "unknown"
    if need > have:
        return "does not fit"
    return "tight" if need * (1 + uncertainty) > have else "fits"


def estimate(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    machine: Machine | None = None,
    nodes: int | None = None,
    folder: Path = Path(),
    with_advice: bool = True,
) -> Estimate:
    """What CMD should need. Reads local files only (config.json, a shell script, DeepSpeed's configuration),
    starts nothing.

    Raises EstimateError, which says what to pass.
    """
    machine = machine or Machine()
    launch = take_apart(argv, environ, folder)
    flags = parse_flags(launch.words, launch.environment, folder)
    plan = _plan(launch, flags, machine, nodes, folder)
    unknown = flags.unknown(FLAG_NAMES) if launch.program in ("megatron", "swift") else ()
    plan = replace(plan, unknown=unknown)
    steps = flags.maybe_whole("train_iters", "max_steps") if plan.on_cpu else None
    return Estimate(
        plan=plan,
        launch=launch,
        needs=gpu_needs(plan),
        host=tuple(host_terms(plan, steps, machine.cpus)),
        save=tuple(save_terms(plan)),
        checkpoint_bytes=checkpoint_bytes(plan),
        advice=advise(plan, steps, machine.cpus) if with_advice else (),
        rules=rules(plan),
        machine=machine,
        notes=(*launch.notes, *plan.assumed, *_beyond(plan)),
        combination=combine(plan, _gpu_have(machine, plan), _host_have(machine, plan), steps, machine.cpus)
        if with_advice
        else None,
    )


def _plan(launch: Launch, flags: Flags, machine: Machine, nodes: int | None, folder: Path) -> Plan:
    processes = launch.processes or machine.gpus or 1
    if launch.processes is None:
        launch.notes.append(f"CMD does not say how many processes a node has: {processes} taken")
    count_of_nodes = nodes or launch.nodes or 1
    if launch.program in ("megatron", "megatron-lm"):
        plain = launch.program == "megatron-lm"
        return megatron_plan(
            flags, launch.verb, processes, count_of_nodes, None if plain else _installed(launch), plain=plain
        )
    return hf_plan(flags, launch, processes, count_of_nodes, folder)


def _installed(launch: Launch) -> tuple[int, ...] | None:
    """The ms-swift beside the program that CMD starts, in its environment's PATH; None where there is none,
    or several."""
    program = shutil.which(launch.program, path=launch.environment.get("PATH", ""))
    if program is None:
        return None
    versions = set()
    try:
        for found in (
            Path(program).resolve().parent.parent.glob("lib/python3*/*-packages/ms_swift-*.dist-info")
        ):
            numbers = re.match(r"ms_swift-(\d+)\.(\d+)\.(\d+)", found.name)
            if numbers:
                versions.add((int(numbers[1]), int(numbers[2]), int(numbers[3])))
    except OSError:
        return None
    return versions.pop() if len(versions) == 1 else None


def _beyond(plan: Plan) -> list[str]:
    """What this command has and the formulas do not."""
    notes = []
    if plan.stage in ("grpo", "gkd"):
        notes.append(
            "rollouts are not counted: vLLM takes --vllm_gpu_memory_utilization of the GPU where it is colocated"
        )
    if plan.optimizer.kind not in ("adam", "sgd"):
        notes.append(f"--optimizer {plan.optimizer.kind} is counted as one fp32 moment")
    if plan.data.bytes_on_disk:
        notes.append(
            f"the dataset's {plan.data.bytes_on_disk / (1 << 30):.2f} GiB are mapped: page cache, which the kernel takes back"
        )
    if plan.batch.padding_free and not plan.batch.packed:
        notes.append(
            "without padding a micro-batch has fewer tokens than counted wherever samples are shorter than --max_length"
        )
    return notes
