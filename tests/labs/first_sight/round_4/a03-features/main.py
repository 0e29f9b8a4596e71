import logging
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import featurestore

RANK = int(os.environ["RANK"])
logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{RANK} %(name)s: %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("linear-probe")
TABLE = "features.db"
ROWS = 4000


class Features(Dataset):
    def __init__(self, store):
        self.store = store

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        vec, label = self.store.get(i)
        time.sleep(0.002)
        return torch.from_numpy(vec), label


def train_epoch(model, loader, opt):
    total = 0.0
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader)


def main():
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.set_num_threads(1)
    if RANK == 0 and not os.path.exists(TABLE):
        featurestore.create(TABLE, ROWS)
    dist.barrier()
    store = featurestore.FeatureStore(TABLE)
    log.info("%d rows", len(store))
    data = Features(store)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=50, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(featurestore.DIM, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(60):
        sampler.set_epoch(epoch)
        mean = train_epoch(model, loader, opt)
        # keep the label statistics fresh; the ranks take turns
        if epoch % 4 == 3 and (epoch // 4) % world == RANK:
            store.recount_in_background()
        summary = torch.tensor([mean, 1.0])
        dist.all_reduce(summary)
        torch.save(model.module.state_dict(), f"probe-rank{RANK}.pt")
        log.info("epoch %d mean loss %.4f", epoch, summary[0] / summary[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
