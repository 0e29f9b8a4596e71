"""A few steps with accelerate; the argument says what goes wrong."""

import os
import signal
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    case = sys.argv[1] if len(sys.argv) > 1 else ""
    accelerator = Accelerator(cpu=not case.startswith("gpu"))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (inputs,) in enumerate(loader):
        loss = model(inputs).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} loss {loss.item():.4f}")
        if case == "key" and step == 2 and accelerator.process_index == 1:
            print({"input_ids": inputs}["labels"])
        if case == "memory" and step == 2 and accelerator.process_index == 1:
            torch.empty(1 << 44)
        if case == "kill" and step == 2 and accelerator.process_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if case == "shapes" and step == 2:
            accelerator.gather(inputs[: 4 - accelerator.process_index])
        accelerator.wait_for_everyone()
    if case == "save":
        accelerator.save_state("output/checkpoint-500")
    if case in {"resume", "save"}:
        accelerator.load_state("output/checkpoint-500")
    accelerator.end_training()


if __name__ == "__main__":
    main()
