import configparser
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler

from catalog import Catalog
from speech import Utterances


class Net(nn.Module):
    def __init__(self, bands=32, classes=20):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(bands, 64, 5, 2), nn.ReLU(), nn.Conv1d(64, 64, 5, 2), nn.ReLU())
        self.gru = nn.GRU(64, 64, batch_first=True)
        self.out = nn.Linear(64, classes)

    def forward(self, x):
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.out(self.gru(h)[1][-1])


class Progress:
    def __init__(self, rank):
        self.fh = open(f"progress.{rank}.txt", "w", buffering=1)

    def __call__(self, **kw):
        self.fh.write(" ".join(f"{k}={v}" for k, v in kw.items()) + "\n")


def run(rank, cfg):
    world = cfg.getint("job", "ranks")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=cfg["job"]["port"], OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1)
    site = cfg["data"]["sites"].split()[rank]
    catalog = Catalog(cfg["data"]["lists"], site)
    model = DistributedDataParallel(Net())
    opt = torch.optim.Adam(model.parameters(), cfg.getfloat("train", "lr"))
    report = Progress(rank)
    report(site=site, recordings=len(catalog.names()))
    step, per_epoch = 0, cfg.getint("train", "steps_per_epoch")
    for epoch in range(cfg.getint("train", "epochs")):
        if epoch and epoch % cfg.getint("data", "refresh_every") == 0:
            catalog.refresh()
        data = Utterances(catalog)
        sampler = RandomSampler(data, num_samples=per_epoch * 8)
        loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, multiprocessing_context="fork")
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                report(epoch=epoch, step=step, loss=f"{loss.item():.3f}")
            time.sleep(0.02)
        if rank == 0:
            torch.save(model.module.state_dict(), "speech.pt")
            print(f"{time.strftime('%X')} epoch {epoch} done, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    cfg = configparser.ConfigParser()
    cfg.read("job.ini")
    mp.start_processes(run, args=(cfg,), nprocs=cfg.getint("job", "ranks"), start_method="spawn")
