"""What must hold for every layout: dividing more never needs more, recomputing more never keeps more, advice
is what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.preflight.estimate import estimate
from diag.preflight.estimate.activations import stage_activations
from diag.preflight.estimate.advice import advise, combine, peaks
from diag.preflight.estimate.host import host_terms, save_terms
from diag.preflight.estimate.plan import Plan
from diag.preflight.estimate.states import held, pinned_bytes, state_terms

MODELS = ["Qwen3-8B", "Qwen3-30B-A3B", "Qwen2.5-7B", "Llama-3.1-70B", "Qwen3-0.6B"]


def plan_of(model: str, flags: str = "", processes: int = 64) -> Plan:
    words = f"megatron rlhf --rlhf_type dpo --model {model} --max_length 2048 --global_batch_size 512 {flags}".split()
    return estimate(words, {"NPROC_PER_NODE": "8", "NNODES": str(processes // 8)}, with_advice=False).plan


def weights(plan: Plan, stage: int = 0) -> int:
    return next(term.size_bytes for term in state_terms(plan, stage) if term.name == "weights")


models = st.sampled_from(MODELS)
powers = st.sampled_from([1, 2, 4])


@settings(max_examples=40, deadline=None)
@given(models, powers, powers)
def test_more_tensor_parallelism_never_means_more_weights_on_a_gpu(model: str, tp: int, pp: int) -> None:
    plan = plan_of(model, f"--tensor_model_parallel_size {tp} --pipeline_model_parallel_size {pp}")
    wider = replace(plan, layout=replace(plan.layout, tp=tp * 2))
    for stage in range(pp):
        assert weights(wider, stage) <= weights(plan, stage)


@settings(max_examples=40, deadline=None)
@given(models, powers, st.booleans(), st.sampled_from(["flash", "unfused"]))
def test_recomputing_more_never_keeps_more(model: str, tp: int, sequence: bool, attention: str) -> None:
    flags = f"--tensor_model_parallel_size {tp} --sequence_parallel {str(sequence).lower()}"
    plan = plan_of(model, f"{flags} --attention_backend {attention}")
    sizes = []
    for granularity in ("full", "selective", "none"):
        how = replace(
            plan.recompute, granularity=granularity, method="uniform" if granularity == "full" else ""
        )
        work = stage_activations(replace(plan, recompute=how), 0)
        sizes.append(work.kept + max(work.logits, work.recomputed + work.working))
    assert sizes == sorted(sizes)


@settings(max_examples=30, deadline=None)
@given(models, powers)
def test_sequence_parallelism_never_keeps_more(model: str, tp: int) -> None:
    plan = plan_of(model, f"--tensor_model_parallel_size {tp * 2}")
    split = replace(plan, layout=replace(plan.layout, sequence_parallel=True))
    assert stage_activations(split, 0).kept < stage_activations(plan, 0).kept


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 3))
def test_more_expert_parallelism_never_means_more_experts_on_a_gpu(ep: int, nodes: int) -> None:
    plan = plan_of("Qwen3-30B-A3B", f"--expert_model_parallel_size {ep}", processes=64)
    wider = replace(plan, layout=replace(plan.layout, ep=ep * 2, nodes=8))
    assert held(wider, 0).experts * 2 == held(plan, 0).experts


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_stages_and_ranks_together_hold_the_whole_model(model: str, pp: int) -> None:
    from diag.preflight.estimate.parameters import count

    plan = plan_of(model, f"--pipeline_model_parallel_size {pp}")
    held_by_all = sum(held(plan, stage).all for stage in range(pp))
    # the last stage has its own
    copies = plan.shape.vocabulary * plan.shape.hidden if plan.shape.tied and pp > 1 else 0
    assert held_by_all == count(plan.shape) + copies


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 64))
def test_a_longer_micro_batch_never_needs_less(micro: int, longer: int) -> None:
    plan = plan_of("Qwen3-8B")
    small = replace(plan, batch=replace(plan.batch, micro=micro, sequence=128))
    large = replace(plan, batch=replace(plan.batch, micro=micro, sequence=128 + longer))
    assert peaks(small)[0] <= peaks(large)[0]


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_offloading_more_moves_from_the_gpu_to_the_host(one: float, other: float, aware: bool) -> None:
    plan = plan_of("Qwen3-8B", "--tensor_model_parallel_size 8")
    less, more = (
        replace(plan, optimizer=replace(plan.optimizer, offload=share, precision_aware=aware))
        for share in sorted((one, other))
    )
    gpu = [sum(term.size_bytes for term in state_terms(item, 0)) for item in (less, more)]
    host = [sum(term.size_bytes for term in host_terms(item)) for item in (less, more)]
    assert gpu[1] <= gpu[0] + 8 and host[1] >= host[0] - 8


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 1 << 34), max_size=20))
def test_pinned_memory_is_between_once_and_twice_what_it_holds(sizes: list[int]) -> None:
    taken = pinned_bytes(sizes, 4.0)
    assert sum(sizes) * 4 <= taken <= max(2 * sum(sizes) * 4, 0)


@pytest.mark.parametrize("model", ["Qwen3-8B", "Qwen3-30B-A3B"])
def test_each_advice_saves_what_it_says(model: str) -> None:
    plan = plan_of(model, "--micro_batch_size 4")
    found = advise(plan)
    assert found
    assert all(item.gpu_bytes < 0 or item.host_bytes < 0 for item in found)
    full = next(item for item in found if "recompute_granularity full" in item.flags)
    changed = replace(plan, recompute=replace(plan.recompute, granularity="full", method="uniform", layers=1))
    assert peaks(changed)[0] - peaks(plan)[0] == full.gpu_bytes


def test_advice_as_flags_has_the_effect_that_was_reported() -> None:
    """The flags are passed to the command itself, which is read anew."""
    plan = plan_of("Qwen3-30B-A3B", "--expert_model_parallel_size 4 --micro_batch_size 2")
    for item in advise(plan):
        if "lora" in item.flags:
            continue
        again = plan_of("Qwen3-30B-A3B", f"--expert_model_parallel_size 4 --micro_batch_size 2 {item.flags}")
        gpu, host = (new - old for new, old in zip(peaks(again), peaks(plan), strict=True))
        assert (gpu, host) == pytest.approx((item.gpu_bytes, item.host_bytes), abs=1 << 20), item.flags


def test_flags_are_combined_where_no_single_one_is_enough() -> None:
    """The combined flags are passed to the command itself, which is read anew: it fits, and with either one
    alone it did not."""
    base = "--expert_model_parallel_size 8 --max_length 2048 --no_save_optim false"
    plan = plan_of("Qwen3-30B-A3B", base)
    gpu, host = peaks(plan)
    alone = [item for item in advise(plan) if "lora" not in item.flags]
    best = min(alone, key=lambda item: item.gpu_bytes)
    have = gpu + best.gpu_bytes - (1 << 30), host
    found = combine(plan, *have)
    assert found is not None
    assert found.enough
    again = peaks(plan_of("Qwen3-30B-A3B", f"{base} {found.advice.flags}"))
    assert again[0] <= have[0]
    assert again[1] <= have[1]
    assert again[0] - gpu == pytest.approx(found.advice.gpu_bytes, abs=1 << 20)
    assert len(found.advice.flags.split()) == 2 * len(set(found.advice.flags.split()[::2]))


def test_nothing_is_combined_where_one_flag_is_enough_or_none_is_needed() -> None:
    plan = plan_of("Qwen3-8B", "--micro_batch_size 4")
    gpu, host = peaks(plan)
    best = min(
        (item for item in advise(plan) if "lora" not in item.flags and item.host_bytes <= 0),
        key=lambda item: item.gpu_bytes,
    )
    assert combine(plan, gpu, host) is None
    assert combine(plan, None, None) is None
    assert combine(plan, gpu + best.gpu_bytes, host) is None


def test_three_flags_that_are_not_enough_are_called_the_nearest() -> None:
    found = combine(plan_of("Qwen3-30B-A3B", "--micro_batch_size 4"), 4 << 30, None)
    assert found is not None
    assert not found.enough
    assert "lora" not in found.advice.flags


def test_nothing_is_advised_that_is_already_so() -> None:
    flags = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --no_save_optim true"
    plan = plan_of(
        "Qwen3-8B", f"{flags} --cross_entropy_loss_fusion false --dataloader_num_workers 1 --tuner_type lora"
    )
    estimated = " ".join(item.flags for item in advise(plan))
    for flag in ("recompute", "no_save_optim", "cross_entropy", "num_workers", "lora"):
        assert flag not in estimated


def test_a_save_of_more_needs_more() -> None:
    plan = plan_of("Qwen3-8B")
    weights_only = replace(plan, save=replace(plan.save, optimizer=False))
    assert sum(term.size_bytes for term in save_terms(weights_only)) < sum(
        term.size_bytes for term in save_terms(plan)
    )
