"""Compiles the same function for a few shapes and says so."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch._logging.set_logs(recompiles=True, graph_breaks=True)


@torch.compile(backend="eager")
def norm(x: torch.Tensor) -> torch.Tensor:
    print("norm of", x.shape)
    return x / x.norm()


for width in (2, 3, 4):
    norm(torch.ones(width))
print(f"rank {dist.get_rank()} done", flush=True)
dist.destroy_process_group()
