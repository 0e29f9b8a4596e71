"""Commands that load a model and train nothing: `swift infer`, and `swift export` to Megatron's format or from it."""

from __future__ import annotations

from collections.abc import Mapping

from diag.launch.launchers.command import CommandError
from diag.launch.launchers.command.flags import Flags
from diag.model.observations.memory import MemoryTerm
from diag.preflight.estimate.model_files import find_shape
from diag.preflight.estimate.parameters import count, layer_count
from diag.preflight.estimate.plan import (
    Batch,
    Data,
    Layout,
    Optimizer,
    Plan,
    Precision,
    Recompute,
    Save,
    Sharding,
    Tuning,
)
from diag.preflight.estimate.states import make_term

VERBS = ("infer", "export")
_BYTES = {"4": 0.55, "8": 1.06}  # of a weight: with the scales of its group
_SEQUENCE = 4096  # ours, of an inference without --max_model_len
_CONVERTS = ("to_mcore", "to_hf")


def load_plan(flags: Flags, verb: str, environment: Mapping[str, str]) -> Plan:
    """The GPUs are those of CUDA_VISIBLE_DEVICES; `device_map auto` spreads the model over them. Raises CommandError
    for exports that are no conversion."""
    assumed: list[str] = []
    if verb == "export" and not any(flags.flag(name) for name in _CONVERTS):
        flag = next((name for name in ("quant_method", "merge_lora") if name in flags), "")
        what = f"`swift export --{flag}`" if flag else "`swift export` without --to_mcore or --to_hf"
        raise CommandError(f"{what} is not estimated", hint="the conversions --to_mcore and --to_hf are")
    name, shape = find_shape(flags, assumed)
    devices = environment.get("CUDA_VISIBLE_DEVICES", "")
    gpus = len([word for word in devices.split(",") if word.strip()]) or 1
    if not devices:
        assumed.append("CUDA_VISIBLE_DEVICES is not set: one GPU counted")
    bits = flags.text("quant_bits", "quantization_bit")
    length = flags.maybe_whole("max_model_len", "vllm_max_model_len", "max_length")
    if verb == "infer" and length is None:
        assumed.append(f"no --max_model_len: keys and values of {_SEQUENCE:,} tokens counted")
    weight = 4.0 if flags.text("torch_dtype") in ("float32", "fp32") else _BYTES.get(bits, 2.0)
    if flags.text("infer_backend") in ("vllm", "sglang", "lmdeploy"):
        assumed.append(
            f"{flags.text('infer_backend')} takes most of what is left of a GPU for keys and values besides"
        )
    tested = flags.flag("test_convert_precision")
    if verb == "export" and not tested and not flags.flag("to_hf"):
        assumed.append("ms-swift 3.x loads the Hugging Face model on the GPU; 4.x does so for a test only")
    return Plan(
        framework="load",
        stage="conversion" if verb == "export" else "inference",
        model=name,
        shape=shape,
        layout=Layout(gpus, 1),
        tuning=Tuning(),
        precision=Precision(weight=weight),
        optimizer=Optimizer(),
        sharding=Sharding(),
        recompute=Recompute("none", "", 1, ()),
        batch=Batch(flags.whole("max_batch_size", default=1), 1, length or _SEQUENCE),
        save=Save(sharded=verb == "export", optimizer=False, safetensors=False),
        data=Data(0),
        trainer=f"`swift {verb}`" + (" with --test_convert_precision" if tested else ""),
        assumed=tuple(assumed),
        tests_precision=tested,
    )


def load_terms(plan: Plan) -> list[MemoryTerm]:
    """Of one GPU, the model divided evenly over all."""
    gpus, parameters, each = plan.layout.processes, count(plan.shape), plan.precision.weight
    terms = [
        make_term("weights_spread", parameters * each / gpus, parameters=parameters, each=each, gpus=gpus)
    ]
    if plan.stage == "inference":
        shape, tokens = plan.shape, plan.batch.tokens
        cached = 2 * shape.kv_size
        if shape.latent is not None:
            cached = shape.latent.kv_rank + shape.latent.rope_dim
        size = 2 * cached * shape.layers * tokens
        terms.append(make_term("kv_cache", size / gpus, tokens=tokens, each=2 * cached * shape.layers))
        terms.append(make_term("prefill", 2 * tokens * (4 * shape.hidden + 3 * shape.ffn)))
    elif plan.tests_precision:
        largest = max(layer_count(plan.shape, number).total for number in range(plan.shape.layers))
        terms.append(make_term("fp32_layer", 4 * max(largest, plan.shape.vocabulary * plan.shape.hidden)))
    return terms


def load_host_terms(plan: Plan) -> list[MemoryTerm]:
    """A conversion has Megatron's model in host memory (use_cpu_initialization)."""
    if plan.stage != "conversion":
        return []
    parameters = count(plan.shape)
    return [make_term("converted", parameters * 2, parameters=parameters)]
