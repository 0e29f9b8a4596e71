import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from corpus import Corpus
from guard import Heartbeat

STAGES = [(24, 80, 40), (80, 160, 40), (160, 240, 40), (260, 400, 200)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.gru, self.out = nn.Embedding(600, 96), nn.GRU(96, 96, batch_first=True), nn.Linear(96, 600)

    def forward(self, ids):
        return nn.functional.cross_entropy(self.out(self.gru(self.emb(ids[:, :-1]))[0]).transpose(1, 2), ids[:, 1:])


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    corpus, heart = Corpus(rank), Heartbeat(45)
    heart.start()
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    step, tic = 0, time.time()
    for low, high, steps in STAGES:
        corpus.stage(low, high)
        for _ in range(steps):
            loss = model(torch.from_numpy(corpus.batch(4)))
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            heart.beat()
            if rank == 0 and step % 8 == 0:
                print(f"step={step} seq={low} ppl={loss.exp().item():.1f} s/step={(time.time() - tic) / 8:.3f}", flush=True)
                tic = time.time()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
