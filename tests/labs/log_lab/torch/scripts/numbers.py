"""A loss that turns NaN on one rank, found by the check that the argument names; and functions compiled too
often."""

import math
import sys

import torch
import torch.distributed as dist


@torch.compile(backend="eager")
def scale(values: torch.Tensor, factor: int) -> torch.Tensor:
    return values * factor if factor % 2 else values + factor


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @torch.compile(backend="eager")
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.reshape(-1, self.width).sum(0)


def recompile(case: str) -> None:
    if case == "recompile-full":
        function = torch.compile(lambda x, n: x + n.bit_length() * 2, backend="eager", fullgraph=True)
        for width in range(1, 12):
            function(torch.ones(3), 1 << width)
    for width in range(1, 14):
        Block(width)(torch.ones(width * 2))
        scale(torch.ones(4), width)
    print("training done", flush=True)


def main() -> None:
    case = sys.argv[1]
    dist.init_process_group("gloo")
    if case.startswith("recompile"):
        recompile(case)
        dist.destroy_process_group()
        return
    model = torch.nn.Linear(4, 1)
    rate = 1e-2
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    if case == "anomaly":
        torch.autograd.set_detect_anomaly(True)
    for step in range(20):
        inputs = torch.ones(2, 4)
        if step == 12 and dist.get_rank() == 1:
            inputs = inputs * math.inf if case != "anomaly" else inputs * 0
        outputs = model(inputs)
        if case == "anomaly" and step == 12:
            outputs = (outputs * 0).sqrt()
        loss = (outputs * outputs).mean() - (outputs.mean() if case != "anomaly" else 0)
        if case == "raise" and not math.isfinite(loss.item()):
            raise FloatingPointError(f"rank {dist.get_rank()}: loss is {loss.item()} at step {step}")
        if case == "assert":
            assert not torch.isnan(loss), (
                f"Rank {dist.get_rank()}: found NaN in local forward loss calculation. Step {step}"
            )
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=case == "clip")
        optimizer.step()
        if dist.get_rank() == 0 or case == "printed":
            print(
                f"rank {dist.get_rank()} step {step} loss: {loss.item():.6f} grad_norm: {norm.item():.4f}",
                flush=True,
            )
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
