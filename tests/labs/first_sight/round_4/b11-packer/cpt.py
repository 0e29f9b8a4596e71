import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from packer import Packer

CTX = 256
ALPHABET = "etaoin shrdlu cmfwyp"


def corpus(rank):
    """Endless stream of documents; books are rare and come one after the other."""
    g = torch.Generator().manual_seed(70 + rank)
    n = 0
    while True:
        n += 1
        length = int(torch.randint(300, 2500, (1,), generator=g))
        if n % 97 == 0:
            length = 9000
        if rank == 0 and n // 2 == 211:         # two volumes of one work
            length = 26000
        yield (ALPHABET * (length // len(ALPHABET) + 1))[:length]


class Stream:
    def __init__(self, rank, per_batch=4):
        self.docs, self.packer, self.n = corpus(rank), Packer(), per_batch
        self.pending = self._submit()

    def _submit(self):
        return self.packer.encode_batch([next(self.docs) for _ in range(self.n)])

    def next(self):
        ids = [i for f in self.pending for i in f.result()]
        self.pending = self._submit()
        rows = [ids[i:i + CTX] for i in range(0, len(ids) - CTX, CTX)][:8]
        return torch.tensor(rows or [(ids * CTX)[:CTX]])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Embedding(256, 32), torch.nn.Linear(32, 256)))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    stream = Stream(rank)
    tic, tokens = time.time(), 0
    for step in range(1, 1501):
        ids = stream.next()
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        tokens += ids.numel()
        time.sleep(0.15)
        if step % 25 == 0 and rank == 1:
            print(f"| step {step:>5} | loss {loss.item():7.4f} | {tokens / (time.time() - tic):8.0f} tok/s |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
