import multiprocessing as mp
import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn

import writer

WORLD = 2
EPOCHS = 10
STEPS = 130
BATCH = 32


def log_interval(epoch):
    return 2 if epoch == 0 else 130


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        dims = [320, 320, 256, 48]
        enc, dec = [], []
        for a, b in zip(dims, dims[1:]):
            enc += [nn.Linear(a, b), nn.SiLU()]
            dec = [nn.Linear(b, a), nn.SiLU()] + dec
        self.net = nn.Sequential(*enc, *dec[:-1])

    def forward(self, x):
        return self.net(x)


def trainer(rank, port, inbox, epoch_end):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Autoencoder())
    opt = torch.optim.Adam(model.parameters(), 3e-4)
    gen = torch.Generator().manual_seed(rank)
    base = torch.randn(24, 320, generator=torch.Generator().manual_seed(77))
    if rank == 0:
        inbox.put(("hello", rank))
    for epoch in range(EPOCHS):
        steps = STEPS // 3 if epoch == 0 else STEPS
        for step in range(1, steps + 1):
            time.sleep(0.04)  # the frame grabber gives 25 batches a second
            x = torch.randn(BATCH, 24, generator=gen) @ base / 5
            loss = (model(x) - x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % log_interval(epoch) == 0:
                inbox.put(("row", rank, epoch, step, f"{loss.item():.5f}"))
        inbox.put(("epoch", rank))
        epoch_end.wait()
        if rank == 0:
            torch.save(model.module.state_dict(), f"epoch{epoch}.pt")
    if rank == 0:
        inbox.put(("stop",))
    dist.destroy_process_group()


def main():
    ctx = mp.get_context("spawn")
    inbox = ctx.Queue()
    epoch_end = ctx.Barrier(WORLD + 1)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    log = ctx.Process(target=writer.run, args=(inbox, epoch_end, "metrics.csv"), name="metrics")
    log.start()
    ranks = [ctx.Process(target=trainer, args=(r, port, inbox, epoch_end), name=f"rank{r}") for r in range(WORLD)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    log.join()
    raise SystemExit(max(abs(p.exitcode) for p in ranks))


if __name__ == "__main__":
    main()
