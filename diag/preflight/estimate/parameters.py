"""How many parameters a model has, part by part, and how many of them lie on one rank of a layout. Exact,
from the shape."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from diag.preflight.estimate.model_shape import Shape


@dataclass(frozen=True, slots=True)
class LayerCount:
    """Parameters of one layer on one rank. `split` are divided by tensor parallelism, `whole` lie on each of
    its ranks, `experts` are the routed ones. `tensors` are the sizes of the single tensors, as memory for
    them is taken one by one.
    """

    split: int
    whole: int
    experts: int
    tensors: tuple[int, ...] = ()
    expert_tensors: tuple[int, ...] = ()

    @property
    def dense(self) -> int:
        return self.split + self.whole

    @property
    def total(self) -> int:
        return self.split + self.whole + self.experts


def total_count(parts: Iterable[LayerCount]) -> LayerCount:
    """Of several layers together."""
    parts = list(parts)
    return LayerCount(
        sum(part.split for part in parts),
        sum(part.whole for part in parts),
        sum(part.experts for part in parts),
        tuple(chain.from_iterable(part.tensors for part in parts)),
        tuple(chain.from_iterable(part.expert_tensors for part in parts)),
    )


def attention_count(shape: Shape, tp: int = 1) -> tuple[int, int, tuple[int, ...]]:
    """(split, whole, tensors) of one layer's attention, without the norm before it."""
    h = shape.hidden
    if shape.latent is not None:
        lat = shape.latent
        wide = shape.heads * (lat.nope_dim + lat.rope_dim)
        query = [lat.query_rank * wide // tp] if lat.query_rank else [h * wide // tp]
        down = [h * lat.query_rank] if lat.query_rank else []
        split = [
            *query,
            lat.kv_rank * shape.heads * (lat.nope_dim + lat.value_dim) // tp,
            shape.heads * lat.value_dim * h // tp,
        ]
        whole = [*down, h * (lat.kv_rank + lat.rope_dim), lat.query_rank + lat.kv_rank]
        return sum(split), sum(whole), (*split, *whole)
    # with more ranks than key heads each rank keeps a whole head
    kv = shape.kv_size // min(tp, shape.kv_heads)
    qkv = h * (shape.query_size // tp + 2 * kv)
    proj = shape.query_size // tp * h
    split = [qkv, proj]
    whole = []
    if shape.qkv_bias:
        split.append(shape.query_size // tp + 2 * kv)
    if shape.proj_bias:
        whole.append(h)
    if shape.qk_norm:
        whole += [shape.head_dim, shape.head_dim]
    return sum(split), sum(whole), (*split, *whole)


def layer_count(shape: Shape, layer: int, tp: int = 1, ep: int = 1, etp: int = 1) -> LayerCount:
    return _layer_count(shape, shape.is_moe(layer), tp, ep, etp)


@functools.lru_cache(maxsize=64)
def _layer_count(shape: Shape, moe: bool, tp: int, ep: int, etp: int) -> LayerCount:
    h = shape.hidden
    split, whole, tensors = attention_count(shape, tp)
    norms = (h,) * shape.norms_per_layer
    whole += sum(norms)
    sizes = [*tensors, *norms]
    expert_sizes: tuple[int, ...] = ()
    width = _dense_width(shape, moe) // tp
    if width:
        split += 3 * h * width
        sizes += [2 * h * width, h * width]
        if shape.mlp_bias:
            split += 2 * width
            whole += h
    if moe:
        router = h * shape.experts + (shape.experts if shape.expert_bias else 0)
        whole += router + (h if shape.shared_gate else 0)
        sizes.append(router)
        here, wide = -(-shape.experts // ep), h * (shape.moe_ffn // etp)
        expert_sizes = (2 * wide, wide) * here
    return LayerCount(split, whole, sum(expert_sizes), tuple(sizes), expert_sizes)


def _dense_width(shape: Shape, moe: bool) -> int:
    """Of the MLP that each token passes through; 0 where there are only routed experts."""
    return shape.shared_ffn if moe else shape.ffn


def count(shape: Shape) -> int:
    """All parameters; a tied output layer counts once.

    >>> from diag.preflight.estimate.model_files import known_config
    >>> from diag.preflight.estimate.model_shape import shape_from_config
    >>> count(shape_from_config(known_config("Qwen3-30B-A3B"))[0])
    30532122624
    """
    with_experts = sum(shape.is_moe(layer) for layer in range(shape.layers))
    each = [_layer_count(shape, moe, 1, 1, 1).total for moe in (True, False)]
    layers = with_experts * each[0] + (shape.layers - with_experts) * each[1]
    return layers + shape.vocabulary * shape.hidden * (1 if shape.tied else 2) + shape.hidden


def lora_count(shape: Shape, layer: int, rank: int, *, tp: int = 1, ep: int = 1, etp: int = 1) -> LayerCount:
    """Parameters that LoRA on all linear layers adds to one layer (not to the router). The A of a
    column-parallel matrix and the B of a row-parallel one lie whole on each rank."""
    h, r = shape.hidden, rank
    if shape.latent is not None:
        split, whole, _ = attention_count(shape, tp)
        added = r * max(1, (split + whole) // h)  # near enough for what is a thousandth of the model
        sizes = [added]
        split_total, whole_total = added, 0
    else:
        kv = shape.kv_size // min(tp, shape.kv_heads)
        query = shape.query_size // tp
        sizes = [r * h, r * (query + 2 * kv), r * query, r * h]
        split_total, whole_total = r * (query + 2 * kv) + r * query, 2 * r * h
    moe = shape.is_moe(layer)
    width = _dense_width(shape, moe)
    if width:
        sizes += [r * h, r * 2 * width // tp, r * width // tp, r * h]
        split_total += r * 3 * width // tp
        whole_total += 2 * r * h
    expert_sizes: tuple[int, ...] = ()
    if moe:
        here = -(-shape.experts // ep)
        expert_sizes = (r * h, r * 2 * shape.moe_ffn // etp, r * shape.moe_ffn // etp, r * h) * here
    return LayerCount(split_total, whole_total, sum(expert_sizes), tuple(sizes), expert_sizes)
