# ruff: noqa: PLR0917 - TransformerEngine's own signatures
"""The part of TransformerEngine's PyTorch API that megatron-core 0.16 calls, in plain PyTorch for the CPU.

Same class names, arguments, parameter names and tensor-parallel meaning; no fp8. Megatron's own TE wrappers
subclass these, so Megatron, its sharding and its checkpoint keys stay the real ones. No context parallelism.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import types
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.nn import Parameter

# The newest version whose interface is covered here: from 1.13 Megatron also wants te.pytorch.ops.
__version__ = "1.12.0"


def _host(device: Any) -> str:
    return "meta" if device == "meta" else "cpu"


class _TensorParallelModule(torch.nn.Module):
    """What Megatron expects of every TE module: extra state, a tensor-parallel group, seeded initialisation."""

    def __init__(
        self,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: str | None = None,
        parallel_mode: str | None = None,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size, self.parallel_mode = tp_group, tp_size, parallel_mode
        self.sequence_parallel = bool(sequence_parallel and tp_size > 1)
        self.get_rng_state_tracker, self.rng_tracker_name = get_rng_state_tracker, rng_tracker_name
        self.fp8 = self.fp8_calibration = self.save_original_input = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "recipe": None}

    def _split(self, in_features: int, out_features: int) -> tuple[int, int]:
        if self.parallel_mode == "column":
            return in_features, out_features // self.tp_size
        if self.parallel_mode == "row":
            return in_features // self.tp_size, out_features
        return in_features, out_features

    def _weight(self, shape: tuple[int, ...], dtype: Any, device: Any, init: Any, dim: int) -> Parameter:
        weight = Parameter(torch.empty(shape, dtype=dtype or torch.get_default_dtype(), device=_host(device)))
        if weight.device.type != "meta":
            seeded: Any = contextlib.nullcontext()
            if self.get_rng_state_tracker is not None:
                tracker = self.get_rng_state_tracker()
                seeded = tracker.fork(self.rng_tracker_name) if self.rng_tracker_name else tracker.fork()
            with seeded, torch.no_grad():
                (init or _default_init)(weight)
        weight.tensor_model_parallel, weight.partition_dim, weight.partition_stride = True, dim, 1  # type: ignore[attr-defined]
        return weight

    def _enter(self, x: Any) -> Any:
        if self.parallel_mode != "column" or self.tp_size == 1:
            return x
        from megatron.core.tensor_parallel import mappings

        if self.sequence_parallel:
            return mappings.gather_from_sequence_parallel_region(
                x, tensor_parallel_output_grad=True, group=self.tp_group
            )
        return mappings.copy_to_tensor_model_parallel_region(x, group=self.tp_group)

    def _leave(self, y: Any) -> Any:
        if self.parallel_mode != "row" or self.tp_size == 1:
            return y
        from megatron.core.tensor_parallel import mappings

        if self.sequence_parallel:
            return mappings.reduce_scatter_to_sequence_parallel_region(y, group=self.tp_group)
        return mappings.reduce_from_tensor_model_parallel_region(y, group=self.tp_group)

    def set_tensor_parallel_group(self, group: Any) -> None:
        self.tp_group = group

    def init_fp8_metadata(self, num_gemms: int = 1) -> None: ...

    def get_extra_state(self) -> Any:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None: ...

    def reset_parameters(self, defer_init: bool = False) -> None: ...

    def backward_dw(self) -> None: ...


def _default_init(weight: Any) -> None:
    torch.nn.init.normal_(weight, 0.0, 0.023)


class Linear(_TensorParallelModule):
    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: str | None = None,
        init_method: Any = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: Any = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        **unused: Any,
    ) -> None:
        super().__init__(
            sequence_parallel, tp_group, tp_size, get_rng_state_tracker, rng_tracker_name, parallel_mode
        )
        self.use_bias, self.return_bias, self.apply_bias = bias, return_bias, bias and not return_bias
        self.in_features, self.out_features = self._split(in_features, out_features)
        row = parallel_mode == "row"
        shape = (self.out_features, self.in_features)
        self.weight = self._weight(shape, params_dtype, device, init_method, 1 if row else 0)
        self.bias: Any = None
        if bias:
            self.bias = self._weight((self.out_features,), params_dtype, device, torch.nn.init.zeros_, 0)
            if row:
                self.bias.tensor_model_parallel, self.bias.sequence_parallel = False, self.sequence_parallel

    def forward(self, inp: Any, is_first_microbatch: Any = None, **unused: Any) -> Any:
        row = self.parallel_mode == "row"  # its bias is added once, after the sum over ranks
        y = self._leave(
            F.linear(self._enter(inp), self.weight, self.bias if self.apply_bias and not row else None)
        )
        if self.apply_bias and row:
            y = y + self.bias
        return (y, self.bias) if self.return_bias else y


def _normalise(x: Any, weight: Any, bias: Any, eps: float, rms: bool, zero_centered: bool) -> Any:
    weight = weight + 1 if zero_centered else weight
    return (
        F.rms_norm(x, weight.shape, weight, eps) if rms else F.layer_norm(x, weight.shape, weight, bias, eps)
    )


class RMSNorm(torch.nn.Module):
    rms = True

    def __init__(
        self,
        hidden_size: int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: Any = None,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        normalized_shape: int | None = None,
        **unused: Any,
    ) -> None:
        super().__init__()
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        dtype = params_dtype or torch.get_default_dtype()
        size = hidden_size or normalized_shape or 0
        start = 0.0 if zero_centered_gamma else 1.0
        self.weight = Parameter(torch.full((size,), start, dtype=dtype, device=_host(device)))
        self.weight.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]
        if not self.rms:
            self.bias = Parameter(torch.zeros(size, dtype=dtype, device=_host(device)))
            self.bias.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Any) -> Any:
        return _normalise(
            x, self.weight, getattr(self, "bias", None), self.eps, self.rms, self.zero_centered_gamma
        )


class LayerNorm(RMSNorm):
    rms = False


class LayerNormLinear(Linear):
    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        return_layernorm_output: bool = False,
        sequence_parallel: bool = False,
        params_dtype: Any = None,
        device: Any = "cuda",
        **rest: Any,
    ) -> None:
        common: dict[str, Any] = {
            "sequence_parallel": sequence_parallel,
            "params_dtype": params_dtype,
            "device": device,
        }
        super().__init__(in_features, out_features, **common, **rest)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        norm_class = RMSNorm if normalization == "RMSNorm" else LayerNorm
        norm = norm_class(in_features, eps, zero_centered_gamma=zero_centered_gamma, **common)
        self.layer_norm_weight, self.layer_norm_bias = norm.weight, getattr(norm, "bias", None)

    def forward(self, inp: Any, is_first_microbatch: Any = None, **unused: Any) -> Any:
        rms = self.normalization == "RMSNorm"
        weight, bias = self.layer_norm_weight, self.layer_norm_bias
        x = _normalise(inp, weight, bias, self.eps, rms, self.zero_centered_gamma)
        y = super().forward(x, is_first_microbatch)
        return (y, x) if self.return_layernorm_output else y


class GroupedLinear(_TensorParallelModule):
    """One linear layer for each local expert; rows of the input are grouped by expert."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: str | None = None,
        init_method: Any = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: Any = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        **unused: Any,
    ) -> None:
        super().__init__(
            sequence_parallel, tp_group, tp_size, get_rng_state_tracker, rng_tracker_name, parallel_mode
        )
        self.num_gemms, self.use_bias, self.return_bias = num_gemms, bias, return_bias
        self.in_features, self.out_features = self._split(in_features, out_features)
        shape, dim = (self.out_features, self.in_features), 1 if parallel_mode == "row" else 0
        for i in range(num_gemms):
            self.register_parameter(f"weight{i}", self._weight(shape, params_dtype, device, init_method, dim))
            if bias:
                zeros = self._weight(shape[:1], params_dtype, device, torch.nn.init.zeros_, 0)
                self.register_parameter(f"bias{i}", zeros)

    def forward(self, inp: Any, m_splits: Any, is_first_microbatch: Any = None) -> Any:
        biases = [getattr(self, f"bias{i}", None) for i in range(self.num_gemms)]
        parts = torch.split(inp.reshape(-1, self.in_features), [int(rows) for rows in m_splits])
        y = torch.cat(
            [
                F.linear(x, getattr(self, f"weight{i}"), None if self.return_bias else biases[i])
                for i, x in enumerate(parts)
            ]
        ).view(*inp.shape[:-1], self.out_features)
        return (y, biases) if self.return_bias else y


class DotProductAttention(torch.nn.Module):
    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Any,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        softmax_scale: float | None = None,
        cp_group: Any = None,
        **unused: Any,
    ) -> None:
        super().__init__()
        self.format, self.mask_type = qkv_format, attn_mask_type
        self.scale, self.dropout = softmax_scale, attention_dropout
        if cp_group is not None and torch.distributed.get_world_size(cp_group) > 1:
            raise NotImplementedError("context parallelism is not possible on the CPU device layer")

    def set_context_parallel_group(self, *args: Any, **kwargs: Any) -> None: ...

    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        attention_mask: Any = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_kv: Any = None,
        attn_mask_type: str | None = None,
        core_attention_bias: Any = None,
        **unused: Any,
    ) -> Any:
        causal = "causal" in (attn_mask_type or self.mask_type)
        packed = (qkv_format or self.format) == "thd"
        if packed:
            mask = _packed_mask(q.shape[0], cu_seqlens_q, causal)
            heads_first = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
        else:
            mask = (
                None
                if attention_mask is None
                else _dense_mask(attention_mask, q.shape[0], k.shape[0], causal)
            )
            heads_first = [x.permute(1, 2, 0, 3) for x in (q, k, v)]
        out = F.scaled_dot_product_attention(
            *heads_first,
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=self.scale,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=heads_first[0].shape[1] != heads_first[1].shape[1],
        )
        if packed:
            return out.squeeze(0).transpose(0, 1).reshape(q.shape[0], -1)
        return out.permute(2, 0, 1, 3).reshape(q.shape[0], q.shape[1], -1)


def _packed_mask(tokens: int, boundaries: Any, causal: bool) -> Any:
    sequence = torch.searchsorted(boundaries.long(), torch.arange(tokens), right=True)
    keep = sequence[:, None] == sequence[None, :]
    return keep & torch.ones(tokens, tokens, dtype=torch.bool).tril() if causal else keep


def _dense_mask(hide: Any, queries: int, keys: int, causal: bool) -> Any:
    keep = ~hide
    if causal:
        keep = keep & torch.ones(queries, keys, dtype=torch.bool).tril()
    return keep | torch.eye(queries, keys, dtype=torch.bool)  # a row of padding alone would give NaN


class FP8GlobalStateManager:
    FP8_ENABLED = False
    is_fp8_enabled = staticmethod(lambda: False)
    is_fp8_calibration = staticmethod(lambda: False)
    get_fp8_recipe = staticmethod(lambda: None)
    reset = staticmethod(lambda: None)


class CudaRNGStatesTracker:
    """Subclassed by Megatron's TE tracker; never the one in use here."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.states_: dict[str, Any] = {}
        self.seeds_: set[int] = set()

    def set_states(self, states: dict[str, Any]) -> None:
        self.states_ = states

    def get_states(self) -> dict[str, Any]:
        return self.states_

    def fork(self, name: str | None = None) -> Any:
        return contextlib.nullcontext()


class DelayedScaling:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class SplitAlongDim:
    @staticmethod
    def apply(tensor: Any, dim: int, sections: Any, squeeze: bool = False) -> Any:
        parts = torch.split(tensor, sections, dim=dim)
        return tuple(part.squeeze(dim) for part in parts) if squeeze else parts


class QuantizedTensor(torch.Tensor): ...


class Float8Tensor(torch.Tensor): ...


def checkpoint(
    function: Any,
    *args: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Any = None,
    tp_group: Any = None,
    use_reentrant: bool = True,
    **kwargs: Any,
) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


def _no_context(*args: Any, **kwargs: Any) -> Any:
    return contextlib.nullcontext()


def _no_fp8(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("fp8 is not possible on the CPU device layer")


def _module(path: str, **members: Any) -> types.ModuleType:
    """A submodule without a file: TE's are many, and each holds two or three of the names above."""
    name = f"{__name__}.{path}"
    module = types.ModuleType(name)
    module.__dict__.update(members, __package__=name, __path__=[])
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    setattr(sys.modules[parent], leaf, module)
    return module


pytorch = _module(
    "pytorch",
    Linear=Linear,
    LayerNormLinear=LayerNormLinear,
    GroupedLinear=GroupedLinear,
    LayerNorm=LayerNorm,
    RMSNorm=RMSNorm,
    DotProductAttention=DotProductAttention,
    fp8_autocast=_no_context,
    fp8_model_init=_no_context,
)
_module(
    "pytorch.fp8",
    FP8GlobalStateManager=FP8GlobalStateManager,
    fp8_autocast=_no_context,
    fp8_model_init=_no_context,
)
_module(
    "pytorch.distributed",
    CudaRNGStatesTracker=CudaRNGStatesTracker,
    checkpoint=checkpoint,
    activation_recompute_forward=_no_context,
)
_module("pytorch.attention", _SplitAlongDim=SplitAlongDim, apply_rotary_pos_emb=None)
_module("pytorch.utils", SplitAlongDim=SplitAlongDim)
_module("pytorch.module", Linear=Linear, LayerNormLinear=LayerNormLinear)
_module("pytorch.float8_tensor", Float8Tensor=Float8Tensor)
_module("pytorch.graph", make_graphed_callables=None)
_module("pytorch.cpp_extensions", cast_to_fp8=_no_fp8)
common = _module("common")
_module("common.recipe", DelayedScaling=DelayedScaling, Format=types.SimpleNamespace(E4M3=1, HYBRID=2))
