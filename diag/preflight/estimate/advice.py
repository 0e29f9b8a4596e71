"""Which flag would save most, found by changing the plan and estimating again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from diag.preflight.estimate.gpu import gpu_needs
from diag.preflight.estimate.host import host_terms, save_terms
from diag.preflight.estimate.plan import Plan, Precision

_WORTH = 0.02  # of the total: less is not worth a line
_TOGETHER = 3  # changes at most: with more it is another job
_SHARD = 2_000_000_000  # bytes: --max_shard_size 2GB
# What a change costs.
ANOTHER_WAY = "another way to train"
COMPUTING = "about a third more computing"
SLOWER = "slower steps"
SMALLER = "more, smaller steps"
TALKS = "more communication"
LOSS = "a little slower loss"
SIXTEEN = ("moments in 16 bits", "gradients summed in 16 bits")

Change = tuple[str, Plan, str]  # flags, the plan with them, what they cost


@dataclass(frozen=True, slots=True)
class Advice:
    """What the peaks would change by (negative: less), in bytes."""

    flags: str
    gpu_bytes: int
    host_bytes: int
    cost: str = ""


def peaks(plan: Plan, steps: int | None = None, cpus: int = 32) -> tuple[int, int]:
    """(GPU of the rank that needs most, host of a node at a save)."""
    gpu = max((need.total for need in gpu_needs(plan)), default=0)
    return gpu, sum(term.size_bytes for term in (*host_terms(plan, steps, cpus), *save_terms(plan)))


def advise(plan: Plan, steps: int | None = None, cpus: int = 32) -> tuple[Advice, ...]:
    """All that save something, those that save most GPU memory first."""
    gpu, host = peaks(plan, steps, cpus)
    found = []
    for flags, other, cost in _changes(plan):
        new_gpu, new_host = peaks(other, steps, cpus)
        change = Advice(flags, new_gpu - gpu, new_host - host, cost)
        if change.gpu_bytes < -_WORTH * gpu or change.host_bytes < -_WORTH * host:
            found.append(change)
    return tuple(sorted(found, key=lambda item: (item.gpu_bytes, item.host_bytes)))


@dataclass(frozen=True, slots=True)
class Combination:
    """Several changes at once; `advice` says what they change together. Those that are not `enough` are the
    nearest found."""

    advice: Advice
    enough: bool


def combine(
    plan: Plan, gpu_have: int | None, host_have: int | None, steps: int | None = None, cpus: int = 32
) -> Combination | None:
    """For a job that does not fit, and would not with any one change: the change that leaves least too much,
    then the next on top of it. None where the job fits, or one change is enough. LoRA is not an answer here: it
    is another way to train.
    """
    gpu, host = peaks(plan, steps, cpus)
    have = (gpu_have, host_have)
    left = _too_much((gpu, host), have)
    if left <= 0:
        return None
    values: dict[str, str] = {}
    costs: list[str] = []
    now, reached, count = plan, (gpu, host), 0
    while left > 0 and count < _TOGETHER:
        best = None
        for flags, other, cost in _changes(now):
            if cost != ANOTHER_WAY and flags.startswith("--"):  # another version is no flag
                then = peaks(other, steps, cpus)
                if best is None or _too_much(then, have) < best[0]:
                    best = (_too_much(then, have), then, flags, other, cost)
        if best is None or best[0] >= left:
            break
        left, reached, flags, now, cost = best
        values.update(_pairs(flags))
        costs += [cost] if cost and cost not in costs else []
        count += 1
    if count == 0 or (count == 1 and left <= 0):
        return None
    together = " ".join(f"{name} {value}".rstrip() for name, value in values.items())
    return Combination(Advice(together, reached[0] - gpu, reached[1] - host, ", ".join(costs)), left <= 0)


def _too_much(need: tuple[int, int], have: tuple[int | None, int | None]) -> float:
    """By how much more than its share of each memory the job needs: 0.5 for half as much again as there is."""
    return sum(max(0.0, want / there - 1.0) for want, there in zip(need, have, strict=True) if there)


def _pairs(flags: str) -> dict[str, str]:
    """
    >>> _pairs("--sequence_parallel true --offload")
    {'--sequence_parallel': 'true', '--offload': ''}
    """
    found: dict[str, str] = {}
    for word in flags.split():
        if word.startswith("--"):
            found[word] = ""
        elif found:
            name = next(reversed(found))
            found[name] = f"{found[name]} {word}".strip()
    return found


def _changes(plan: Plan) -> Iterator[Change]:
    if plan.framework == "load":
        return
    yield from _megatron_changes(plan) if plan.framework == "megatron" else _hf_changes(plan)
    if plan.data.workers > 1:
        old = plan.trainer.startswith("ms-swift 3") and plan.framework == "megatron"
        flags = "--num_workers 1" if old else "--dataloader_num_workers 1"
        yield _change(plan, flags, "data may arrive late", data={"workers": 1})


def _change(plan: Plan, flags: str, cost: str = "", **parts: Any) -> Change:
    """`parts`: fields of the plan; a dict has those of a part of it."""
    changed = {
        name: replace(getattr(plan, name), **value) if isinstance(value, dict) else value
        for name, value in parts.items()
    }
    return flags, replace(plan, **changed), cost


def _megatron_changes(plan: Plan) -> Iterator[Change]:
    layout, how = plan.layout, plan.recompute
    if plan.reference_gradients:
        yield _change(plan, "ms-swift 3.8.3 or newer", reference_gradients=False)
    one_layer = {"granularity": "full", "method": "uniform", "layers": 1}
    if how.granularity != "full":
        flags = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
        yield _change(plan, flags, COMPUTING, recompute=one_layer)
    elif how.method == "block" or how.layers > 1:
        yield _change(plan, "--recompute_method uniform --recompute_num_layers 1", recompute=one_layer)
    if layout.tp > 1 and not layout.sequence_parallel:
        yield _change(plan, "--sequence_parallel true", layout={"sequence_parallel": True})
    yield from _wider(plan)
    if plan.batch.micro > 1:
        yield _change(plan, "--micro_batch_size 1", SMALLER, batch={"micro": 1})
    if plan.attention == "unfused":
        yield _change(plan, "--attention_backend flash", attention="flash")
    if plan.compiled_loss:
        yield _change(plan, "--cross_entropy_loss_fusion false", LOSS, compiled_loss=False)
    if not plan.optimizer.distributed:
        yield _change(plan, "--use_distributed_optimizer true", optimizer={"distributed": True})
    elif plan.tuning.kind != "lora":
        yield from _optimizer_changes(plan)
    if plan.tuning.kind == "full":
        tuner = "train_type" if plan.trainer.startswith("ms-swift 3") else "tuner_type"
        yield _change(plan, f"--{tuner} lora", ANOTHER_WAY, tuning={"kind": "lora"}, reference=False)
    yield from _save_changes(plan)


def _optimizer_changes(plan: Plan) -> Iterator[Change]:
    opt, prec = plan.optimizer, plan.precision
    aware, in_16_bits = "--use_precision_aware_optimizer true", {"main": 2.0, "moment1": 2.0, "moment2": 2.0}
    if opt.offload < 1:
        flags = f"--optimizer_cpu_offload true --optimizer_offload_fraction 1 {aware}"
        yield _change(plan, flags, SLOWER, optimizer={"offload": 1.0, "precision_aware": True})
    else:
        yield _change(plan, "--optimizer_offload_fraction 0.5", optimizer={"offload": 0.5})
    if opt.offload and not opt.precision_aware:
        yield _change(plan, aware, optimizer={"precision_aware": True})
    if not opt.offload and prec.moment1 > 2:
        flags, cost = f"{aware} --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16", SIXTEEN[0]
        yield _change(plan, flags, cost, optimizer={"precision_aware": True}, precision=in_16_bits)
    if prec.gradient > 2:
        flags, cost = f"--main_grads_dtype bf16 {aware}", SIXTEEN[1]
        precision = {"gradient": 2.0, "main": min(prec.main, 2.0)}
        yield _change(plan, flags, cost, optimizer={"precision_aware": True}, precision=precision)


def _wider(plan: Plan) -> Iterator[Change]:
    """Twice of one kind of parallelism, on the same GPUs."""
    layout, shape = plan.layout, plan.shape
    tp, ep, cp, pp = layout.tp * 2, layout.ep * 2, layout.cp * 2, layout.pp * 2

    def experts_divide(ep: int, pp: int) -> bool:
        return not shape.experts or layout.world % (ep * layout.etp * pp) == 0

    halves = layout.dp % 2 == 0
    if halves and shape.heads % tp == 0 and tp <= layout.processes and experts_divide(layout.ep, layout.pp):
        flags = f"--tensor_model_parallel_size {tp} --sequence_parallel true"
        yield _change(plan, flags, TALKS, layout={"tp": tp, "sequence_parallel": True})
    if shape.experts and shape.experts % ep == 0 and experts_divide(ep, layout.pp):
        yield _change(plan, f"--expert_model_parallel_size {ep}", TALKS, layout={"ep": ep})
    if halves:
        yield _change(plan, f"--context_parallel_size {cp}", TALKS, layout={"cp": cp})
        even = layout.first_layers is None and layout.last_layers is None
        if even and shape.layers % (pp * layout.vpp) == 0 and experts_divide(layout.ep, pp):
            cost = "idle time at each step's ends"
            yield _change(plan, f"--pipeline_model_parallel_size {pp}", cost, layout={"pp": pp})


def _save_changes(plan: Plan) -> Iterator[Change]:
    save = plan.save
    if save.optimizer and save.sharded:
        sharded = not save.safetensors or plan.trainer.startswith("ms-swift 3")
        cost = "a run cannot be resumed exactly"
        yield _change(plan, "--no_save_optim true", cost, save={"optimizer": False, "sharded": sharded})
    if save.gathered:
        flags, cost = "--dist_ckpt_optim_fully_reshardable false", "resume with the same TP and PP"
        yield _change(plan, flags, cost, save={"gathered": False})
    if save.safetensors and save.shard_bytes > _SHARD:
        yield _change(plan, "--max_shard_size 2GB", save={"shard_bytes": _SHARD})


def _hf_changes(plan: Plan) -> Iterator[Change]:
    how = plan.sharding
    if plan.recompute.granularity != "full":
        recompute = {"granularity": "full", "method": "uniform"}
        yield _change(plan, "--gradient_checkpointing true", COMPUTING, recompute=recompute)
    if how.kind != "fsdp" and how.stage < 3 and plan.layout.world > 1:
        full = plan.tuning.kind == "full"
        precision = Precision(2.0, 2.0, 4.0, 4.0, 4.0) if full else plan.precision
        sharding = {"kind": "zero", "stage": 3}
        yield _change(plan, "--deepspeed zero3", TALKS, sharding=sharding, precision=precision)
    if how.kind == "zero" and not how.optimizer_on_cpu:
        stage = max(how.stage, 2)
        sharding = {"stage": stage, "optimizer_on_cpu": True, "parameters_on_cpu": stage == 3}
        yield _change(plan, f"--deepspeed zero{stage}_offload", SLOWER, sharding=sharding)
    if plan.batch.micro > 1:
        yield _change(plan, "--per_device_train_batch_size 1", SMALLER, batch={"micro": 1})
    if plan.attention == "unfused":
        yield _change(plan, "--attn_impl flash_attn", attention="flash")
    if plan.attention == "flash" and plan.stage in ("sft", "pt"):
        yield _change(plan, "--use_liger_kernel true", attention="liger")
    if plan.tuning.kind == "full":
        yield _change(plan, "--tuner_type lora", ANOTHER_WAY, tuning={"kind": "lora"}, reference=False)
