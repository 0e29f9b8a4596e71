"""The estimate of a command. What is read is in `launch`, the `*_plan` modules and `model_files`, what is
computed in `gpu` and `host`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diag.knowledge.swift_flags import all_flags
from diag.launch.launchers.command import Command, CommandError, read_command
from diag.launch.launchers.command.flags import Flags, parse_flags
from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.advice import Advice, Combination, advise, combine
from diag.preflight.estimate.fit import longest_length
from diag.preflight.estimate.gpu import RankNeed, gpu_needs, rules
from diag.preflight.estimate.hf_plan import hf_plan
from diag.preflight.estimate.host import checkpoint_bytes, host_terms, save_terms
from diag.preflight.estimate.load_plan import VERBS, load_plan
from diag.preflight.estimate.machine import Machine
from diag.preflight.estimate.megatron_plan import megatron_plan
from diag.preflight.estimate.parameters import count
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.speed import speed_json
from diag.preflight.estimate.trust import Trust, trust
from diag.preflight.launch_facts import version_beside
from diag.text.units import format_bytes, format_count, format_magnitude, ranks_on_nodes

_NAMES = {"pt": "pre-training", "rm": "reward model"}
_UPPER = ("sft", "dpo", "kto", "grpo", "gkd")


@dataclass(frozen=True, slots=True)
class Estimate:
    plan: Plan
    command: Command
    needs: tuple[RankNeed, ...]  # of each pipeline stage; empty without a GPU
    host: tuple[MemoryTerm, ...]
    save: tuple[MemoryTerm, ...]
    checkpoint_bytes: int
    advice: tuple[Advice, ...]
    rules: tuple[MemoryTerm, ...]
    machine: Machine
    notes: tuple[str, ...]
    combination: Combination | None = None  # where it does not fit, and no one change of `advice` is enough

    @property
    def trust(self) -> Trust:
        return trust(self.plan)

    @property
    def longest_sequence(self) -> int | None:
        """Tokens of the longest sequence with which a rank fits its GPU, margin included; None where CMD's own or the
        model's limit does, or the GPU is not known. 0: it does not fit with any."""
        have = _have(self.machine, self.plan)[0]
        margin = self.trust.gpu
        if have is None or self.plan.framework == "load" or self.gpu_bytes * (1 + margin) <= have:
            return None
        longest = longest_length(self.plan, have, margin)
        return longest if longest < self.plan.batch.sequence else None

    @property
    def short(self) -> tuple[int, int]:
        """GPU and host memory that are missing for it to fit with its margin."""
        gpu, host = _have(self.machine, self.plan)
        needs = (
            (self.gpu_bytes, gpu, self.trust.gpu),
            (self.host_bytes + self.save_bytes, host, self.trust.host),
        )
        missing = [
            0 if have is None else max(0, int(need * (1 + margin)) - have) for need, have, margin in needs
        ]
        return missing[0], missing[1]

    @property
    def free(self) -> tuple[int | None, int | None]:
        """GPU and host memory that the job leaves, without any margin; None where the size is not known."""
        gpu, host = _have(self.machine, self.plan)
        return (
            None if gpu is None else gpu - self.gpu_bytes,
            None if host is None else host - self.host_bytes - self.save_bytes,
        )

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
        """fits, tight, does not fit, or unknown. Tight also where CMD does not limit the length of its sequences, and
        `longest_sequence` is what fits."""
        verdict = _verdict(self.gpu_bytes, _have(self.machine, self.plan)[0], self.trust.gpu)
        if verdict == "does not fit" and not self.plan.batch.limited and self.longest_sequence:
            return "tight"
        return verdict

    @property
    def host_verdict(self) -> str:
        """As of the GPU."""
        need = self.host_bytes + self.save_bytes
        return _verdict(need, _have(self.machine, self.plan)[1], self.trust.host)

    @property
    def fits(self) -> bool:
        """False only where a verdict is that it does not."""
        return "does not fit" not in (self.gpu_verdict, self.host_verdict)

    @property
    def basis(self) -> str:
        """The model and the layout as one line."""
        plan, layout = self.plan, self.plan.layout
        if plan.framework == "load":
            size = f"{format_magnitude(count(plan.shape))} parameters"
            return f"{plan.model} ({size}), {plan.stage} on {format_count(layout.processes, 'GPU')}"
        kinds = {"lora": f" with LoRA (rank {plan.tuning.lora_rank})", "freeze": " in part"}
        stage = plan.stage.upper() if plan.stage in _UPPER else _NAMES.get(plan.stage, plan.stage)
        text = f"{plan.model} ({format_magnitude(count(plan.shape))} parameters), "
        text += f"{stage}{kinds.get(plan.tuning.kind, '')}; "
        text += f"{ranks_on_nodes(layout.processes, layout.nodes)}: "
        if plan.framework == "megatron":
            text += f"TP {layout.tp} PP {layout.pp} CP {layout.cp} DP {layout.dp}"
            text += f" EP {layout.ep}" if plan.shape.experts else ""
            text += ", sequence parallel" if layout.sequence_parallel else ""
        elif plan.sharding.kind == "zero":
            text += f"ZeRO {plan.sharding.stage}" + (", offloaded" if plan.sharding.optimizer_on_cpu else "")
        else:
            text += "FSDP" if plan.sharding.kind == "fsdp" else "data parallel"
        return text + f"; up to {plan.batch.tokens:,} tokens a micro-batch"

    @property
    def batch(self) -> dict[str, int] | None:
        """The global batch and what it is the product of; None where nothing is trained."""
        plan, layout, batch = self.plan, self.plan.layout, self.plan.batch
        if plan.framework == "load":
            return None
        ranks = layout.dp if plan.framework == "megatron" else layout.world // layout.cp
        steps = max(1, round(batch.global_size / (batch.micro * ranks)))
        return {
            "global": batch.global_size,
            "micro": batch.micro,
            "accumulated": steps,
            "data_parallel": ranks,
        }

    @property
    def batch_words(self) -> str:
        batch = self.batch
        if batch is None:
            return ""
        what = "packs" if self.plan.batch.packed else "pairs" if self.plan.batch.pairs > 1 else "samples"
        product = f"{batch['micro']} x {batch['accumulated']} x {batch['data_parallel']}"
        return f"{batch['global']} {what} = {product} (a micro-batch x accumulated x data parallel)"

    def observation(self) -> dict[str, Any]:
        """The payload of a record of source "estimate"."""
        return {
            "basis": self.basis,
            "gpu": terms_json(self.worst.terms if self.worst else ()),
            "host": terms_json(self.host),
            "save": terms_json(self.save),
            "checkpoint_bytes": self.checkpoint_bytes,
            "speed": speed_json(self.plan),
        }


def terms_json(terms: Iterable[MemoryTerm]) -> list[dict[str, Any]]:
    return [
        {"name": term.name, "bytes": term.size_bytes, "formula": term.formula, "source": term.source}
        for term in terms
    ]


def _have(machine: Machine, plan: Plan) -> tuple[int | None, int | None]:
    """(GPU, host) memory that the job would have. A machine without GPUs is not the one that a job for GPUs
    will run on."""
    host = machine.host_bytes if machine.is_node or plan.on_cpu else None
    return None if plan.on_cpu else machine.gpu_bytes, host


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
    model: str = "",
    ranks: int | None = None,
) -> Estimate:
    """What CMD should need. Reads local files only (config.json, a shell script, DeepSpeed's configuration),
    starts nothing. `model`: in place of the one that CMD names; `ranks`: of a node, where CMD does not set them.

    Raises CommandError, which says what to pass.
    """
    machine = machine or Machine()
    command = read_command(argv, environ, folder, certain=False)
    loads = command.verb in VERBS
    if command.unread and not loads:
        raise CommandError(command.unread, hint=command.hint)
    words = (*command.words, *(("--model", model) if model else ()))
    flags = parse_flags(words, command.environment, command.folder)
    processes = (
        (None if ranks and not command.processes_from else command.processes) or ranks or machine.gpus or 1
    )
    try:
        plan = (
            load_plan(flags, command.verb, command.environment)
            if loads
            else _plan(command, flags, processes, nodes or command.nodes or 1)
        )
    except CommandError as error:
        if command.config:
            raise CommandError(f"{error}; {command.config}", hint=error.hint) from error
        raise
    if command.program in ("megatron", "swift"):
        plan = replace(plan, unknown=flags.unknown(all_flags(command.program)))
    steps = flags.maybe_whole("train_iters", "max_steps") if plan.on_cpu else None
    return Estimate(
        plan=plan,
        command=command,
        needs=gpu_needs(plan),
        host=tuple(host_terms(plan, steps, machine.cpus)),
        save=tuple(save_terms(plan)),
        checkpoint_bytes=checkpoint_bytes(plan),
        advice=advise(plan, steps, machine.cpus) if with_advice else (),
        rules=rules(plan),
        machine=machine,
        notes=(
            *command.notes,
            *(() if loads else _taken(command, processes, nodes, ranks)),
            *plan.assumed,
            *_beyond(plan),
        ),
        combination=combine(plan, *_have(machine, plan), steps, machine.cpus) if with_advice else None,
    )


def _plan(command: Command, flags: Flags, processes: int, nodes: int) -> Plan:
    plain = command.program == "megatron-lm"
    if not plain and command.program != "megatron":
        return hf_plan(flags, command, processes, nodes, command.folder)
    version, known_from = (None, "") if plain else _installed(command)
    return megatron_plan(flags, command.verb, processes, nodes, version, plain=plain, known_from=known_from)


def _taken(command: Command, processes: int, nodes: int | None, ranks: int | None) -> list[str]:
    """What CMD leaves open, or starts on fewer nodes than it seems."""
    notes = []
    if command.processes is None and not ranks:
        notes.append(f"CMD does not say how many processes a node has: {processes} assumed")
    by_srun = (command.srun.nodes if command.srun is not None else None) or 1
    if nodes is None and by_srun > (command.nodes or 1) and command.is_elastic:
        but = f"but {command.launcher} is configured for {command.nodes or 'one'}: each node would train separately"
        notes.append(f"srun starts CMD on {by_srun} nodes, {but}")
    return notes


# The official images: modelscope:ubuntu22.04-cuda12.6.3-py311-torch2.7.1-vllm0.10.0-modelscope1.28.2-swift3.7.1
_IMAGE = re.compile(r"swift[-_]?v?(\d+)\.(\d+)(?:\.(\d+))?")


def _installed(command: Command) -> tuple[tuple[int, ...] | None, str]:
    """The ms-swift beside the program that CMD starts, in its environment's PATH, or the one that the image is
    named after, and how it is known."""
    if command.container is not None:
        found = _IMAGE.search(command.container.image.rpartition("/")[2])
        numbers = tuple(int(number or 0) for number in found.groups()) if found else None
        return numbers, "by the image's name"
    if command.elsewhere:
        return None, ""
    program = shutil.which(command.program, path=command.environment.get("PATH", ""))
    version = None if program is None else version_beside(Path(program).resolve(), "ms_swift")
    return version, "as installed"


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
            f"the dataset's {format_bytes(plan.data.bytes_on_disk)} are mapped: page cache, which the kernel takes back"
        )
    if plan.batch.padding_free and not plan.batch.packed:
        notes.append(
            "without padding a micro-batch has fewer tokens than counted wherever samples are shorter than --max_length"
        )
    return notes
