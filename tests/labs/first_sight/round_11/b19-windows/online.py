"""Online training: each rank learns by itself from its sensor and the weights are averaged every few windows."""
import json
import os

import torch
import torch.distributed as dist
from torch import nn

from sensors import Windows


def average(params):
    flat = nn.utils.parameters_to_vector(params)
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / dist.get_world_size(), params)


def main(windows=8, window_seconds=17, local_steps=40, average_every=4):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.GRU(1, 24, batch_first=True)
    out = nn.Linear(24, 1)
    params = [*net.parameters(), *out.parameters()]
    opt = torch.optim.Adam(params, 3e-3)
    results = []
    for n, window in zip(range(windows), Windows(window_seconds, rank)):
        for s in range(local_steps):
            x = window[s % 8::8, :96, None]
            loss = nn.functional.mse_loss(out(net(x[:, :-1])[0]), x[:, 1:])
            opt.zero_grad()
            loss.backward()
            opt.step()
        results.append(loss.item())
        if (n + 1) % average_every == 0:
            with torch.no_grad():
                average(params)
    dist.barrier()
    if rank == 0:
        with open("online.json", "w") as f:
            json.dump({"loss": results}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(os.environ.get("WINDOWS", "8")))
