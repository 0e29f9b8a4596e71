"""What a model is made of, read from a Hugging Face config.json: sizes, experts, biases, tied embeddings.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.launch.launchers.command import CommandError
from diag.text.tables import load_table


@dataclass(frozen=True, slots=True)
class Latent:
    """DeepSeek's multi-head latent attention: ranks of the compressed queries (0: not compressed) and keys,
    and head sizes."""

    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with a gated MLP (three matrices) and RMS norms. `moe_layers` are the layers that have
    experts, as booleans."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    tied: bool
    qkv_bias: bool = False
    proj_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_per_layer: int = 2
    experts: int = 0
    top_k: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    expert_bias: bool = False  # one value an expert, kept beside the router (DeepSeek-V3)
    moe_layers: tuple[bool, ...] = ()
    latent: Latent | None = None
    max_positions: int = 0

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def is_moe(self, layer: int) -> bool:
        return bool(self.moe_layers) and self.moe_layers[layer]


MODELS = Path(__file__).with_name("models.yaml")
_MOST_LAYERS, _MOST_EXPERTS = 2_000, 1_000_000  # of the whole model; each tensor of an expert is counted
_NOT_A_DECODER = ("linear_attention", "mamba", "recurrent", "gated_delta")


def shape_from_config(config: Mapping[str, Any], where: str = "config.json") -> tuple[Shape, tuple[str, ...]]:
    """The shape, and what had to be assumed. Raises CommandError where a size is missing or makes no sense."""
    notes: list[str] = []
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**{key: value for key, value in config.items() if key != "text_config"}, **inner}
        notes.append("the model also has a vision or audio part, which is not counted")
    kind = str(config.get("model_type", ""))
    traits = load_table(MODELS)["model_types"].get(kind, {})
    _refuse_what_is_not_a_decoder(config, kind, where, refused="refused" in traits)
    if "known" not in traits:
        notes.append(
            f"model_type {kind or 'not given'} is not known here: read as a plain decoder with a gated MLP"
        )
    hidden = _size(config, where, "hidden_size")
    layers = _size(config, where, "num_hidden_layers", most=_MOST_LAYERS)
    heads = _size(config, where, "num_attention_heads")
    moe = _experts(config, traits, layers, where)
    bias = bool(config.get("attention_bias", config.get("qkv_bias", config.get("use_bias"))))
    qk_norm = config.get("use_qk_norm", config.get("qk_norm"))
    shape = Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_size(config, where, "num_key_value_heads", default=heads),
        head_dim=_size(config, where, "head_dim", default=max(1, hidden // heads)),
        ffn=_size(config, where, "intermediate_size", default=moe.get("moe_ffn")),
        vocabulary=_size(config, where, "vocab_size"),
        tied=bool(config.get("tie_word_embeddings", "tied" in traits)),
        qkv_bias=bias or "qkv_bias" in traits,
        proj_bias=bias and "qkv_bias" not in traits,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=kind.startswith("qwen3") or bool(qk_norm) or "qk_norm" in traits,
        norms_per_layer=traits.get("norms", 2),
        latent=_latent(config, where),
        max_positions=_size(config, where, "max_position_embeddings", default=0),
        **moe,
    )
    if min(shape.kv_heads, shape.head_dim) < 1:
        raise CommandError(
            f"{where}: num_key_value_heads {shape.kv_heads}, head_dim {shape.head_dim}: neither may be 0"
        )
    if shape.kv_heads > shape.heads:
        raise CommandError(
            f"{where}: num_key_value_heads {shape.kv_heads} is more than num_attention_heads {heads}"
        )
    return shape, tuple(notes)


def _refuse_what_is_not_a_decoder(config: Mapping[str, Any], kind: str, where: str, *, refused: bool) -> None:
    layer_types = config.get("layer_types")
    kinds = {str(item) for item in layer_types} if isinstance(layer_types, (list, tuple)) else set()
    strange = sorted(item for item in kinds if any(word in item for word in _NOT_A_DECODER))
    if strange or refused:
        hint = "its memory is not modelled here; measure a short run with `diag run`, which shows GPU and host peaks"
        layers = f" (layers: {', '.join(strange)})" if strange else ""
        what = f"{kind or 'this model'} is not a decoder of plain attention and gated MLPs{layers}"
        raise CommandError(f"{where}: {what}", hint=hint)


def _size(config: Mapping[str, Any], where: str, name: str, default: Any = None, most: int = 1 << 40) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        hint = "pass --model with a folder that holds the model's full config.json"
        raise CommandError(f"{where} has no {name}", hint=hint)
    least = 1 if default is None else 0
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < most:
        raise CommandError(f"{where}: {name} is {value!r}, which is not a size")
    return value


def _experts(config: Mapping[str, Any], traits: Mapping[str, Any], layers: int, where: str) -> dict[str, Any]:
    names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    name = next((item for item in names if config.get(item)), None)
    if name is None:
        return {}
    experts = _size(config, where, name, most=_MOST_EXPERTS // max(1, layers))
    width = _size(config, where, "moe_intermediate_size", default=config.get("intermediate_size"))
    shared = _size(config, where, "shared_expert_intermediate_size", default=0) or (
        _size(config, where, "n_shared_experts", default=0, most=_MOST_EXPERTS) * width
    )
    step = config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1
    if not isinstance(step, int) or step < 1:
        step = 1
    plain = config.get("mlp_only_layers") or ()
    if not isinstance(plain, (list, tuple)):
        raise CommandError(f"{where}: mlp_only_layers is {plain!r}, which is not a list of layers")
    first = _size(config, where, "first_k_dense_replace", default=0)
    shift = 1 if str(config.get("model_type")).startswith("qwen") else 0
    return {
        "experts": experts,
        "top_k": _size(config, where, "num_experts_per_tok", default=config.get("moe_topk", 1)),
        "moe_ffn": width,
        "shared_ffn": shared,
        "shared_gate": bool(shared) and "shared_gate" in traits,
        "expert_bias": config.get("topk_method") == "noaux_tc" or "expert_bias" in traits,
        "moe_layers": tuple(
            index >= first and index not in plain and (index + shift) % step == 0 for index in range(layers)
        ),
    }


def _latent(config: Mapping[str, Any], where: str) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        query_rank=_size(config, where, "q_lora_rank", default=0),
        kv_rank=_size(config, where, "kv_lora_rank"),
        nope_dim=_size(config, where, "qk_nope_head_dim"),
        rope_dim=_size(config, where, "qk_rope_head_dim"),
        value_dim=_size(config, where, "v_head_dim"),
    )
