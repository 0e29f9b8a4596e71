"""Saves and loads a checkpoint; the argument says what is wrong with it."""

import os
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

FOLDER = Path(os.environ.get("CHECKPOINTS", "checkpoint-100"))


class Net(torch.nn.Module):
    def __init__(self, hidden: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(1000, hidden)
        self.head = torch.nn.Linear(hidden, classes)


class Progress:
    """What a trainer keeps beside the weights."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.random = random.getstate()


def save(case: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    model = Net(hidden=4096) if case.startswith("full") else Net()
    state = {"model": model.state_dict(), "step": 100}
    if case == "object":
        state["progress"] = Progress(100)
    if case in {"dcp-key", "dcp-shape", "dcp-metadata", "dcp-full"}:
        if case == "dcp-full":
            state["model"] = Net(hidden=4096).state_dict()
        dcp.save(state["model"], checkpoint_id=str(FOLDER))
    elif case == "safetensors" or case.startswith("safe"):
        from safetensors.torch import save_file

        if dist.get_rank() == 0:
            save_file(
                Net(hidden=4096 if case == "safe-full" else 32).state_dict(), FOLDER / "model.safetensors"
            )
    elif dist.get_rank() == 0 or case == "all-save":
        torch.save(state, FOLDER / "model.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"saved checkpoint to {FOLDER}", flush=True)


def spoil(case: str) -> None:
    file = FOLDER / "model.pt"
    if case in {"truncated", "full-truncated"}:
        os.truncate(file, file.stat().st_size // 2)
    elif case == "empty":
        os.truncate(file, 0)
    elif case == "zeros":
        file.write_bytes(bytes(file.stat().st_size))
    elif case == "html":
        file.write_text("<!DOCTYPE html><html><head><title>Sign in</title></head></html>")
    elif case == "missing":
        file.unlink()
    elif case == "dcp-metadata":
        (FOLDER / ".metadata").unlink()
    elif case == "safe-truncated":
        os.truncate(FOLDER / "model.safetensors", 20000)
    elif case == "safe-lfs":
        (FOLDER / "model.safetensors").write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n"
        )


def load(case: str) -> None:
    if case == "shapes":
        model = Net(hidden=64)
    elif case == "classes":
        model = Net(classes=8)
    else:
        model = Net()
    if case.startswith("dcp"):
        state = Net(hidden=64 if case == "dcp-shape" else 32).state_dict()
        if case == "dcp-key":
            state["adapter.weight"] = torch.zeros(4)
        dcp.load(state, checkpoint_id=str(FOLDER))
    elif case.startswith("safe"):
        from safetensors.torch import load_file

        model.load_state_dict(load_file(FOLDER / "model.safetensors"))
    else:
        state = torch.load(FOLDER / "model.pt", map_location="cpu")
        weights = state["model"]
        if case == "keys":
            weights = {f"module.{name}": value for name, value in weights.items()}
        model.load_state_dict(weights)
    if case == "optimizer":
        before = torch.optim.AdamW(list(model.parameters())[:2]).state_dict()
        torch.optim.AdamW(model.parameters()).load_state_dict(before)


def main() -> None:
    case = sys.argv[1]
    dist.init_process_group("gloo")
    save(case)
    if dist.get_rank() == 0:
        spoil(case)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"loading checkpoint from {FOLDER}", flush=True)
    load(case)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
