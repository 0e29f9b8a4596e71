"""How far an estimate may be off: by what was measured, by what others published for commands of its kind, and wider
where neither was. docs/estimate.md has both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.preflight.estimate.model_files import table_name
from diag.preflight.estimate.parameters import count
from diag.preflight.estimate.plan import Plan
from diag.text.tables import load_table
from diag.text.units import format_count, format_magnitude, format_ratio

PUBLISHED = Path(__file__).with_name("published.yaml")

# Measured to within 8 % (GPU) and 14 % (host), with all parameters trained by Megatron on one and two GPUs.
_MEASURED_RANKS = 2
_MEASURED_PARAMETERS = 2_000_000_000  # twice the largest that was measured
_MEASURED = (0.10, 0.15)
# Ours: twice what the published runs of the kind are off on the average, at least what the worst one is.
_MEGATRON_FULL = 0.15
_ELSE = 0.25
_ZERO_EXPERTS = (
    0.35  # no run with experts under DeepSpeed was measured, and the one that is published filled its cards
)
_HOST_ELSE = 0.25  # nobody publishes host memory


@dataclass(frozen=True, slots=True)
class Trust:
    """`gpu`, `host`: margins as shares of the totals. `words`: what they rest on."""

    gpu: float
    host: float
    words: tuple[str, ...]


def trust(plan: Plan) -> Trust:
    world, parameters = plan.layout.world, count(plan.shape)
    is_megatron = plan.framework == "megatron"
    full = plan.tuning.kind == "full"
    if plan.framework == "load":
        return Trust(
            _ELSE, _HOST_ELSE, ("read from sources: nothing of its kind was measured, so the margin is wide",)
        )
    measured = (
        "measured were Megatron's DPO of Qwen3-MoE models of 0.1 and 1 billion parameters on one and two H200"
    )
    if is_megatron and full and world <= _MEASURED_RANKS and parameters <= _MEASURED_PARAMETERS:
        return Trust(*_MEASURED, (f"{measured}: CMD is near them",))
    outside = [f"{format_magnitude(parameters)} parameters"] if parameters > _MEASURED_PARAMETERS else []
    outside += [format_count(world, "rank")] if world > _MEASURED_RANKS else []
    outside += [] if is_megatron else ["not Megatron"]
    outside += [] if full else ["LoRA" if plan.tuning.kind == "lora" else "trained in part"]
    words = [f"{measured}; CMD is not near them ({', '.join(outside)})"]
    kind = "megatron_full" if is_megatron else "zero_full"
    margin = _ZERO_EXPERTS if plan.shape.experts else _ELSE
    if is_megatron:
        margin = _MEGATRON_FULL if full else _ELSE
    if full:
        off = load_table(PUBLISHED)["kinds"][kind]
        words.append(
            f"{off['runs']} runs of its kind that ms-swift publishes ({off['gpus']} GPUs) are off by "
            f"{_signed(off['least'])} to {_signed(off['most'])}"
        )
        if plan.shape.experts and not is_megatron:
            words.append(
                "none of them has experts: the one that is published filled its cards of 80 GiB, and shows no more"
            )
    else:
        words.append("nothing of its kind was measured, so the margin is wide")
    words.append("host memory was measured with one and two ranks only")
    return Trust(margin, _HOST_ELSE, tuple(words))


def _signed(share: float) -> str:
    return f"{'-' if share < 0 else '+'}{format_ratio(abs(share))}"


def published_runs(plan: Plan) -> list[dict[str, Any]]:
    """Runs of the same model, those that are most like the plan first: by what is trained, by how, by GPUs."""
    name = table_name(plan.model)
    if name is None:
        return []
    method = method_of(plan)
    likeness = {"stage": plan.stage, "tuning": plan.tuning.kind, "method": method, "gpus": plan.layout.world}
    runs = [run for run in load_table(PUBLISHED)["runs"] if run["model"] == name]
    return sorted(runs, key=lambda run: -sum(run.get(key) == value for key, value in likeness.items()))


def method_of(plan: Plan) -> str:
    if plan.framework == "megatron":
        return "megatron"
    return f"zero{plan.sharding.stage}" if plan.sharding.kind == "zero" else plan.sharding.kind


def run_words(run: dict[str, Any]) -> str:
    """One published run as a line, without its address.

    >>> run = {"stage": "sft", "tuning": "full", "gpus": 16, "gpu": "A800", "layout": "ZeRO 3", "length": 8192}
    >>> run_words({**run, "seconds": 91.2, "gib": 80, "filled": True})
    'SFT, 16 x A800, ZeRO 3, 8,192 tokens: 91.2 s/it, 80 GiB (all of the card)'
    """
    what = {"pt": "pre-training"}.get(run["stage"], run["stage"].upper())
    what += " with LoRA" if run["tuning"] == "lora" else ""
    gpus = f"{run['gpus']} x {run['gpu']}" if run.get("gpu") else f"{run['gpus']} GPUs"
    where = [what, gpus, run["layout"]] + (["optimizer in host memory"] if run.get("offloaded") else [])
    figures = [f"{run['seconds']:g} s/it"] if "seconds" in run else []
    figures += [f"{run['tokens_per_gpu']:,} tokens/s a GPU"] if "tokens_per_gpu" in run else []
    figures += (
        [f"{run['gib']} GiB{' (all of the card)' if run.get('filled') else ''}"] if "gib" in run else []
    )
    note = f" ({run['note']})" if run.get("note") else ""
    return f"{', '.join(where)}, {run['length']:,} tokens: {', '.join(figures)}{note}"
