"""Which flag would save most, found by changing the plan and estimating again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from diag.preflight.estimate.gpu import gpu_needs
from diag.preflight.estimate.host import host_terms, save_terms
from diag.preflight.estimate.plan import Plan

_WORTH = 0.02  # of the total: less is not worth a line
_TOGETHER = 3  # changes at most: with more it is another job
_ANOTHER_WAY = "another way to train"


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
    host = sum(term.size_bytes for term in host_terms(plan, steps, cpus)) + sum(
        term.size_bytes for term in save_terms(plan)
    )
    return gpu, host


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
    then the next on top of it. None where the job fits, or one change is enough. LoRA is no answer here: it
    is another way to train.
    """
    gpu, host = peaks(plan, steps, cpus)
    have = (gpu_have, host_have)
    left = _too_much((gpu, host), have)
    if left <= 0:
        return None
    words: dict[str, str] = {}
    costs: list[str] = []
    now, reached, count = plan, (gpu, host), 0
    while left > 0 and count < _TOGETHER:
        best = None
        for flags, other, cost in _changes(now):
            if cost != _ANOTHER_WAY:
                then = peaks(other, steps, cpus)
                if best is None or _too_much(then, have) < best[0]:
                    best = (_too_much(then, have), then, flags, other, cost)
        if best is None or best[0] >= left:
            break
        left, reached, flags, now, cost = best
        words.update(_pairs(flags))
        costs += [cost] if cost and cost not in costs else []
        count += 1
    if count == 0 or (count == 1 and left <= 0):
        return None
    together = " ".join(f"{name} {value}".rstrip() for name, value in words.items())
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


def _changes(plan: Plan) -> Iterator[tuple[str, Plan, str]]:
    yield from _megatron_changes(plan) if plan.framework == "megatron" else _hf_changes(plan)
    if plan.data.workers > 1:
        yield (
            "--dataloader_num_workers 1"
            if not plan.trainer.startswith("ms-swift 3") or plan.framework == "hf"
            else "--num_workers 1",
            replace(plan, data=replace(plan.data, workers=1)),
            "data may come late",
        )


def _megatron_changes(plan: Plan) -> Iterator[tuple[str, Plan, str]]:
    layout = plan.layout
    if plan.recompute.granularity != "full":
        yield (
            "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
            replace(plan, recompute=replace(plan.recompute, granularity="full", method="uniform", layers=1)),
            "about a third more computing",
        )
    elif plan.recompute.method == "block" or plan.recompute.layers > 1:
        yield (
            "--recompute_method uniform --recompute_num_layers 1",
            replace(plan, recompute=replace(plan.recompute, method="uniform", layers=1)),
            "",
        )
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "--sequence_parallel true", replace(plan, layout=replace(layout, sequence_parallel=True)), ""
    yield from _wider(plan)
    if plan.batch.micro > 1:
        yield "--micro_batch_size 1", replace(plan, batch=replace(plan.batch, micro=1)), "more, smaller steps"
    if plan.attention == "unfused":
        yield "--attention_backend flash", replace(plan, attention="flash"), ""
    if plan.compiled_loss:
        yield "--cross_entropy_loss_fusion false", replace(plan, compiled_loss=False), "a little slower loss"
    if not plan.optimizer.distributed:
        yield (
            "--use_distributed_optimizer true",
            replace(plan, optimizer=replace(plan.optimizer, distributed=True)),
            "",
        )
    elif plan.tuning.kind != "lora":
        yield from _optimizer_changes(plan)
    if plan.tuning.kind == "full":
        tuner = "train_type" if plan.trainer.startswith("ms-swift 3") else "tuner_type"
        yield (
            f"--{tuner} lora",
            replace(plan, tuning=replace(plan.tuning, kind="lora"), reference=False),
            _ANOTHER_WAY,
        )
    yield from _save_changes(plan)


def _optimizer_changes(plan: Plan) -> Iterator[tuple[str, Plan, str]]:
    opt, prec = plan.optimizer, plan.precision
    if opt.offload < 1:
        yield (
            "--optimizer_cpu_offload true --optimizer_offload_fraction 1 --use_precision_aware_optimizer true",
            replace(plan, optimizer=replace(opt, offload=1.0, precision_aware=True)),
            "slower steps",
        )
    else:
        yield "--optimizer_offload_fraction 0.5", replace(plan, optimizer=replace(opt, offload=0.5)), ""
    if opt.offload and not opt.precision_aware:
        yield (
            "--use_precision_aware_optimizer true",
            replace(plan, optimizer=replace(opt, precision_aware=True)),
            "",
        )
    if not opt.offload and prec.moment1 > 2:
        yield (
            "--use_precision_aware_optimizer true --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16",
            replace(
                plan,
                optimizer=replace(opt, precision_aware=True),
                precision=replace(prec, main=2.0, moment1=2.0, moment2=2.0),
            ),
            "moments in 16 bits",
        )
    if prec.gradient > 2:
        yield (
            "--main_grads_dtype bf16 --use_precision_aware_optimizer true",
            replace(
                plan,
                optimizer=replace(opt, precision_aware=True),
                precision=replace(prec, gradient=2.0, main=min(prec.main, 2.0)),
            ),
            "gradients summed in 16 bits",
        )


def _wider(plan: Plan) -> Iterator[tuple[str, Plan, str]]:
    """Twice of one kind of parallelism, on the same GPUs."""
    layout, shape = plan.layout, plan.shape
    if layout.dp % 2 == 0 and shape.heads % (layout.tp * 2) == 0 and layout.tp * 2 <= layout.processes:
        doubled = replace(layout, tp=layout.tp * 2, sequence_parallel=True)
        if not shape.experts or layout.world % (layout.ep * layout.etp * layout.pp) == 0:
            yield (
                f"--tensor_model_parallel_size {layout.tp * 2} --sequence_parallel true",
                replace(plan, layout=doubled),
                "more communication",
            )
    experts_divide = shape.experts and shape.experts % (layout.ep * 2) == 0
    if experts_divide and layout.world % (layout.ep * 2 * layout.etp * layout.pp) == 0:
        yield (
            f"--expert_model_parallel_size {layout.ep * 2}",
            replace(plan, layout=replace(layout, ep=layout.ep * 2)),
            "more communication",
        )
    if layout.dp % 2 == 0:
        yield (
            f"--context_parallel_size {layout.cp * 2}",
            replace(plan, layout=replace(layout, cp=layout.cp * 2)),
            "more communication",
        )
        stages = layout.pp * 2
        if (
            shape.layers % (stages * layout.vpp) == 0
            and layout.first_layers is None
            and layout.last_layers is None
            and (not shape.experts or layout.world % (layout.ep * layout.etp * stages) == 0)
        ):
            yield (
                f"--pipeline_model_parallel_size {stages}",
                replace(plan, layout=replace(layout, pp=stages)),
                "idle time at each step's ends",
            )


def _save_changes(plan: Plan) -> Iterator[tuple[str, Plan, str]]:
    save = plan.save
    if save.optimizer and save.sharded:
        sharded = save.sharded and not (save.safetensors and not plan.trainer.startswith("ms-swift 3"))
        yield (
            "--no_save_optim true",
            replace(plan, save=replace(save, optimizer=False, sharded=sharded)),
            "a run cannot be resumed exactly",
        )
    if save.gathered:
        yield (
            "--dist_ckpt_optim_fully_reshardable false",
            replace(plan, save=replace(save, gathered=False)),
            "resume with the same TP and PP",
        )
    if save.safetensors and save.shard_bytes > 2_000_000_000:
        yield "--max_shard_size 2GB", replace(plan, save=replace(save, shard_bytes=2_000_000_000)), ""


def _hf_changes(plan: Plan) -> Iterator[tuple[str, Plan, str]]:
    how = plan.sharding
    if plan.recompute.granularity != "full":
        yield (
            "--gradient_checkpointing true",
            replace(plan, recompute=replace(plan.recompute, granularity="full", method="uniform")),
            "about a third more computing",
        )
    if how.kind != "fsdp" and how.stage < 3 and plan.layout.world > 1:
        prec = replace(plan.precision, gradient=2.0, weight=2.0, main=4.0, moment1=4.0, moment2=4.0)
        changed = replace(
            plan,
            sharding=replace(how, kind="zero", stage=3),
            precision=prec if plan.tuning.kind == "full" else plan.precision,
        )
        yield "--deepspeed zero3", changed, "more communication"
    if how.kind == "zero" and not how.optimizer_on_cpu:
        stage = max(how.stage, 2)
        yield (
            f"--deepspeed zero{stage}_offload",
            replace(
                plan, sharding=replace(how, stage=stage, optimizer_on_cpu=True, parameters_on_cpu=stage == 3)
            ),
            "slower steps",
        )
    if plan.batch.micro > 1:
        yield (
            "--per_device_train_batch_size 1",
            replace(plan, batch=replace(plan.batch, micro=1)),
            "more, smaller steps",
        )
    if plan.attention == "unfused":
        yield "--attn_impl flash_attn", replace(plan, attention="flash"), ""
    if plan.attention == "flash" and plan.stage in ("sft", "pt"):
        yield "--use_liger_kernel true", replace(plan, attention="liger"), ""
    if plan.tuning.kind == "full":
        yield (
            "--tuner_type lora",
            replace(plan, tuning=replace(plan.tuning, kind="lora"), reference=False),
            "another way to train",
        )
