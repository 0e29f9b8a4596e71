"""A CPU device layer for Megatron: whatever it asks of "the current CUDA device" is answered with the CPU.

Megatron names CUDA in some 150 places, so no set of its flags runs it on a CPU. Instead torch is told three
things: device functions answer for the CPU, the literal device "cuda" means the CPU, and `Tensor.type()` says
"torch.cuda.*" because the mixed-precision optimizers compare those strings. Few places in megatron-core need
a patch of their own.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .after_import import after_import

# Read by torch when it is imported. Compiling needs a C++ compiler and seconds for each function.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

_FACTORIES = [
    "tensor",
    "as_tensor",
    "scalar_tensor",
    "zeros",
    "ones",
    "empty",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "arange",
    "eye",
    "linspace",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "tril_indices",
    "triu_indices",
]


class Stream:
    """An inert torch.cuda.Stream: on the CPU everything is done when the call returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream = self.stream_id = self.device_index = 0

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0


class Event:
    """A torch.cuda.Event that only keeps the time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


def _constant(value: Any) -> Callable[..., Any]:
    # A new function for every name: dynamo keeps a table of torch functions and refuses one under two names.
    return lambda *args, **kwargs: value


def install() -> None:
    """Import torch and turn its CUDA side into the CPU. To be called before megatron is imported; twice is
    harmless."""
    import torch

    if getattr(torch, "_diag_cpu_device", False):
        return
    torch._diag_cpu_device = True  # type: ignore[attr-defined]
    cpu = torch.device("cpu")
    _answer_for_the_device(torch, cpu)
    _read_cuda_as_cpu(torch, cpu)
    # No compiler is needed, importing is 1.5 s faster, and script() could not see through the wrapped
    # factories.
    torch.compile = lambda model=None, *a, **k: (lambda f: f) if model is None else model  # type: ignore[assignment]
    torch.jit.script = lambda obj=None, *a, **k: (lambda f: f) if obj is None else obj  # type: ignore[assignment]
    after_import("megatron.core.tensor_parallel.random", _patch_random)
    after_import("megatron.core.transformer.torch_norm", _patch_norm)
    after_import("megatron.core.transformer.moe.moe_utils", _patch_moe)
    after_import("megatron.core.optimizer.distrib_optimizer", _patch_distributed_optimizer)


def _answer_for_the_device(torch: Any, cpu: Any) -> None:
    cuda = torch.cuda
    cuda.current_device = _constant(cpu)  # Megatron only ever passes it on as device=
    for name in [
        "set_device",
        "synchronize",
        "empty_cache",
        "ipc_collect",
        "manual_seed_all",
        "reset_peak_memory_stats",
    ]:
        setattr(cuda, name, _constant(None))
    for name in ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"]:
        setattr(cuda, name, _constant(0))
    cuda.memory_stats = lambda *a, **k: collections.defaultdict(int)
    cuda.Stream, cuda.Event = Stream, Event
    cuda.stream = lambda *a, **k: contextlib.nullcontext()
    cuda.device = lambda *a, **k: contextlib.nullcontext()
    cuda.current_stream = lambda *a, **k: Stream()
    cuda.default_stream = lambda *a, **k: Stream()
    cuda.is_current_stream_capturing = _constant(False)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(int(seed))
    for owner in (cuda, cuda.random):
        owner.get_rng_state = lambda *a, **k: torch.get_rng_state()
        owner.set_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    cuda.nvtx.range_push, cuda.nvtx.range_pop = _constant(None), _constant(None)
    # ms-swift seeds Megatron's rng tracker only if there is a device; without it TP dies in the first
    # dropout.
    cuda.device_count = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _is_cuda(torch: Any, device: Any) -> bool:
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def _read_cuda_as_cpu(torch: Any, cpu: Any) -> None:
    def factory(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") is not None and _is_cuda(torch, kwargs["device"]):
                kwargs["device"] = cpu
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return function(*args, **kwargs)

        return wrapped

    def mover(function: Any) -> Any:
        @functools.wraps(function)
        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            if args and not isinstance(args[0], (torch.dtype, torch.Tensor)) and _is_cuda(torch, args[0]):
                args = (cpu, *args[1:])
            if _is_cuda(torch, kwargs.get("device")):
                kwargs["device"] = cpu
            return function(self, *args, **kwargs)

        return to

    tensor, module = torch.Tensor, torch.nn.Module
    for name in _FACTORIES:
        setattr(torch, name, factory(getattr(torch, name)))
    for name in ("new_zeros", "new_empty", "new_ones", "new_full", "new_tensor"):
        setattr(tensor, name, factory(getattr(tensor, name)))
    tensor.to, module.to = mover(tensor.to), mover(module.to)
    tensor.cuda = lambda self, *a, **k: self
    module.cuda = lambda self, *a, **k: self
    tensor.pin_memory = lambda self, *a, **k: self
    tensor.record_stream = lambda self, stream: None
    type_of = tensor.type

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return type_of(self).replace("torch.", "torch.cuda.", 1)
        return type_of(self, dtype, *args, **kwargs)

    tensor.type = type_


def _patch_random(random: ModuleType) -> None:
    import torch

    def set_state(state: Any, device: Any = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(state)

    random._set_cuda_rng_state = set_state  # type: ignore[attr-defined]


def _patch_norm(torch_norm: ModuleType) -> None:
    import torch

    class WrappedTorchNorm:
        """Megatron's refuses sequence parallelism; marking the weights is all that it takes."""

        def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> Any:
            norm = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
            made = norm(hidden_size, eps=eps)
            for parameter in made.parameters():
                parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
            return made

    torch_norm.WrappedTorchNorm = WrappedTorchNorm  # type: ignore[attr-defined]


def _patch_moe(moe_utils: ModuleType) -> None:
    import torch

    # megatron-core 0.16.1 reads this name even where importing it from TransformerEngine failed.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # type: ignore[attr-defined]

    def to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        # The original converts CUDA tensors only, and all_to_all would then get tensors as split sizes.
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    if hasattr(moe_utils, "maybe_move_tensor_to_cpu"):
        moe_utils.maybe_move_tensor_to_cpu = to_host  # type: ignore[attr-defined]


def _patch_distributed_optimizer(module: ModuleType) -> None:
    if getattr(module, "HAVE_APEX_OR_TE", True):
        return
    import torch

    optimizer_class: Any = module.DistributedOptimizer
    original = optimizer_class.state_dict

    def state_dict(self: Any) -> Any:
        # It asserts one Adam step in every group; torch's AdamW has none before its first step (resume).
        inner = self.optimizer
        if not any(inner.state.values()):
            for group in inner.param_groups:
                for p in group["params"]:
                    zeros = torch.zeros_like
                    inner.state[p] = {"step": torch.tensor(0.0), "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}
        return original(self)

    optimizer_class.state_dict = state_dict
