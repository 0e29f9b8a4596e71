"""What a training command amounts to, once its flags are read: the values that the formulas go by. Changing
one and estimating again is how advice is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from diag.launch.launchers.command.flags import Flags
from diag.preflight.estimate.model_shape import Shape


@dataclass(frozen=True, slots=True)
class Layout:
    """How the ranks divide the model. `first_layers`, `last_layers`: layers of the first and last pipeline
    stage where given."""

    processes: int  # of one node
    nodes: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    sequence_parallel: bool = False
    first_layers: int | None = None
    last_layers: int | None = None

    @property
    def world(self) -> int:
        return self.processes * self.nodes

    @property
    def dp(self) -> int:
        return max(1, self.world // (self.tp * self.pp * self.cp))

    @property
    def dense_copies(self) -> int:
        """Ranks over which the optimizer's part of the dense parameters is divided: data and context
        parallel."""
        return self.dp * self.cp

    @property
    def expert_copies(self) -> int:
        return max(1, self.world // (self.ep * self.etp * self.pp))

    def layers_of(self, stage: int, layers: int) -> range:
        """The numbers of a pipeline stage's layers."""
        stages = self.stage_layers(layers)
        start = sum(stages[:stage])
        return range(start, start + stages[stage])

    def stage_layers(self, layers: int) -> tuple[int, ...]:
        """Layers of each pipeline stage."""
        if self.pp == 1:
            return (layers,)
        first, last = self.first_layers, self.last_layers
        middle = self.pp - (first is not None) - (last is not None)
        rest = layers - (first or 0) - (last or 0)
        share, extra = divmod(max(rest, 0), middle) if middle else (0, 0)
        stages = [share + (1 if index < extra else 0) for index in range(middle)]
        return tuple(number for number in (first, *stages, last) if number is not None)


@dataclass(frozen=True, slots=True)
class Tuning:
    kind: str = "full"  # full, lora, freeze
    lora_rank: int = 8
    frozen_share: float = 0.0  # freeze_parameters_ratio
    quantized_bytes: float | None = None  # QLoRA: bytes of one frozen weight


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of one value."""

    weight: float = 2.0
    gradient: float = 4.0
    main: float = 4.0
    moment1: float = 4.0
    moment2: float = 4.0


@dataclass(frozen=True, slots=True)
class Optimizer:
    kind: str = "adam"
    distributed: bool = True
    precision_aware: bool = False
    offload: float = 0.0  # share of the optimizer that lies in host memory


@dataclass(frozen=True, slots=True)
class Sharding:
    """How DeepSpeed or FSDP divide states over the data-parallel ranks. `kind`: none, zero, fsdp."""

    kind: str = "none"
    stage: int = 0
    optimizer_on_cpu: bool = False
    parameters_on_cpu: bool = False
    bucket: int = 500_000_000  # elements: DeepSpeed's reduce_bucket_size and allgather_bucket_size
    live: int = 1_000_000_000  # elements: stage3_max_live_parameters
    gather_on_save: bool = True


@dataclass(frozen=True, slots=True)
class Recompute:
    granularity: str = "selective"  # none, selective, full
    method: str = ""  # uniform, block
    layers: int = 1
    modules: tuple[str, ...] = ("core_attn",)


@dataclass(frozen=True, slots=True)
class Batch:
    """`sequence` is the longest sequence (or the packing length); `pairs` 2 where chosen and rejected go
    together."""

    micro: int
    global_size: int
    sequence: int
    pairs: int = 1
    packed: bool = False
    padding_free: bool = False
    limited: bool = True  # whether CMD says how long a sequence may be

    @property
    def tokens(self) -> int:
        """Of one micro-batch, at most."""
        return self.micro * self.sequence * self.pairs


@dataclass(frozen=True, slots=True)
class Save:
    """What a checkpoint writes. `sharded` is torch_dist (or ZeRO's) with the model, `optimizer` in it too."""

    sharded: bool
    optimizer: bool
    safetensors: bool
    asynchronous: bool = False
    persistent_worker: bool = False
    gathered: bool = False  # dist_ckpt_optim_fully_reshardable
    gathered_on_first: bool = False  # ... in its mem_efficient form, on data-parallel rank 0 only
    shard_bytes: int = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Data:
    workers: int
    streaming: bool = False
    bytes_on_disk: int | None = None  # of the dataset's local files
    prefetch: int = 2
    pin_memory: bool = True
    forked: bool = True  # workers share the rank's memory until one of them writes


@dataclass(frozen=True, slots=True)
class Plan:
    framework: str  # megatron, hf, load (no training)
    stage: str  # sft, pt, dpo, kto, rm, orpo, grpo, ...; of load: inference, conversion
    model: str  # as the user named it
    shape: Shape
    layout: Layout
    tuning: Tuning
    precision: Precision
    optimizer: Optimizer
    sharding: Sharding
    recompute: Recompute
    batch: Batch
    save: Save
    data: Data
    reference: bool = False  # a second, frozen model
    reference_gradients: bool = False  # it has a buffer of fp32 gradients, though it is frozen
    attention: str = "flash"  # flash (and fused, sdpa: nothing of the scores is kept), unfused
    fused_gradients: bool = True  # gradients of weights are added into the main gradients at once
    compiled_loss: bool = False  # cross entropy through torch.compile
    balance_loss: bool = False  # a loss on how evenly the experts are used
    on_cpu: bool = False  # the whole job runs without a GPU
    tests_precision: bool = False  # a conversion compares both models in fp32, layer by layer
    trainer: str = ""  # as in "read as ms-swift 4.x"
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class ParallelSizes(NamedTuple):
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int


def parallel_sizes(flags: Flags) -> ParallelSizes:
    """Raises CommandError for what is not such a size."""
    # Megatron-LM takes TP for expert_tensor where it is not given; ms-swift 3.7 leaves it to Megatron, from 3.9 on
    # it is 1.
    kinds = ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
    return ParallelSizes(*(flags.whole(f"{kind}_parallel_size", default=1, most=4096) for kind in kinds))
