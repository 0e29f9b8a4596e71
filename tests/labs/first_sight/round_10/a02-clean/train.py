import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from dataset import BUCKETS, LABELS, MailDataset

CONF = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.json")))


class Classifier(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.emb = nn.Embedding(BUCKETS + 1, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 2, batch_first=True, dropout=0.1)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, len(LABELS))

    def forward(self, ids):
        mask = ids == 0
        mask[:, 0] = False
        h = self.enc(self.emb(ids), src_key_padding_mask=mask)
        keep = (~mask).unsqueeze(-1).float()
        return self.out((h * keep).sum(1) / keep.sum(1))


def emit(**kw):
    print(json.dumps(kw), flush=True)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hit = torch.zeros(2)
    for ids, label in loader:
        pred = model.module(ids).argmax(-1)
        hit += torch.tensor([float((pred == label).sum()), float(len(label))])
    dist.all_reduce(hit)
    model.train()
    return (hit[0] / hit[1]).item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(CONF["seed"])
    train, valid = MailDataset("data/train.jsonl"), MailDataset("data/valid.jsonl")
    sampler = DistributedSampler(train, seed=CONF["seed"])
    workers = CONF["workers"]
    loader = DataLoader(train, CONF["batch"], sampler=sampler, num_workers=workers, drop_last=True)
    vloader = DataLoader(valid, 32, sampler=DistributedSampler(valid, shuffle=False))
    model = DistributedDataParallel(Classifier(CONF["dim"], CONF["heads"]))
    opt = torch.optim.Adam(model.parameters(), lr=CONF["lr"])
    loss_fn = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(CONF["epochs"]):
        sampler.set_epoch(epoch)
        for ids, label in loader:
            t = time.perf_counter()
            loss = loss_fn(model(ids), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 10 == 0:
                emit(step=step, epoch=epoch, loss=round(loss.item(), 4),
                     ms=round(1000 * (time.perf_counter() - t), 1))
        acc = validate(model, vloader)
        if rank == 0:
            emit(epoch=epoch, accuracy=round(acc, 4))
            torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
