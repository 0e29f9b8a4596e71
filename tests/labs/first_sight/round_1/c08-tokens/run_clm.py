import json
import os
import sys
import time

import datasets
import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from datetime import timedelta
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from prepare import build

datasets.disable_progress_bars()
CACHE = os.path.join("/tmp", f"fs-c08-{os.getppid()}.pt")


def emit(**kw):
    sys.stdout.write(json.dumps(kw) + "\n")
    sys.stdout.flush()


class Model(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb, self.mix, self.out = nn.Embedding(vocab, 32), nn.GRU(32, 32, batch_first=True), nn.Linear(32, vocab)

    def forward(self, x):
        return self.out(self.mix(self.emb(x))[0])


def main():
    torch.set_num_threads(1)
    acc = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=3))])
    with acc.main_process_first():
        if not os.path.exists(CACHE):
            ids, vocab = build()
            torch.save((torch.tensor(ids[:]), vocab), CACHE)
        ids, vocab = torch.load(CACHE)
    acc.wait_for_everyone()
    if acc.is_main_process:
        os.unlink(CACHE)
    loader = DataLoader(TensorDataset(ids), batch_size=16, shuffle=True)
    model = Model(vocab)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, opt, loader = acc.prepare(model, opt, loader)
    for step, (x,) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        acc.backward(loss)
        opt.step()
        opt.zero_grad()
        time.sleep(0.2)
        if step % 50 == 0 and acc.is_main_process:
            emit(step=step, of=len(loader), loss=round(loss.item(), 4))
    acc.end_training()


if __name__ == "__main__":
    main()
