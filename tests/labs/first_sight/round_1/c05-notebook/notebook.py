# %% exported with jupytext
import os
import time

import torch
from accelerate import Accelerator, notebook_launcher
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from history import history

# %% Sweep over the width on one process
def sweep():
    for width in (8, 16, 32):
        for trial in range(100000):
            history.add(kind="sweep", width=width, trial=trial, score=1.0 / (1 + trial % 97))
    print("sweep: 300000 trials")


# %% The training function
def training_function(epochs, width):
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    x = torch.randn(1600, 12)
    y = (x ** 2).sum(1, keepdim=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(12, width), nn.GELU(), nn.Linear(width, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    step = 0
    for epoch in range(epochs):
        for a, b in loader:
            loss = nn.functional.mse_loss(model(a), b)
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
            step += 1
            time.sleep(0.2)
            if step % 25 == 0:
                accelerator.print(f"epoch {epoch}  step {step:5d}  loss {loss.item():8.4f}", flush=True)
        mean = accelerator.gather(loss.detach().reshape(1)).mean().item()
        if accelerator.is_main_process:
            history.add(kind="train", epoch=epoch, loss=mean)
            accelerator.print(f"--- epoch {epoch} mean loss {mean:.4f}", flush=True)


# %% Run
if __name__ == "__main__":
    sweep()
    history.save_async()
    notebook_launcher(training_function, args=(30, 32), num_processes=2, use_port="29717")
