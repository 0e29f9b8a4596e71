import argparse
import multiprocessing
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

import clean
import sources

SEQ = 96


class ByteGRU(nn.Module):
    def __init__(self, dim=96):
        super().__init__()
        self.emb = nn.Embedding(256, dim)
        self.rnn = nn.GRU(dim, dim, num_layers=1, batch_first=True)
        self.head = nn.Linear(dim, 256)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


def to_batches(texts, size=16):
    blob = "\n\n".join(texts).encode("utf-8", "ignore")
    data = torch.frombuffer(bytearray(blob), dtype=torch.uint8).long()
    n = (len(data) - 1) // (SEQ * size)
    for i in range(n):
        part = data[i * SEQ * size:(i + 1) * SEQ * size + 1]
        yield part[:-1].view(size, SEQ), part[1:].view(size, SEQ)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--chunks", type=int, default=40)
    ap.add_argument("--steps-per-chunk", type=int, default=12)
    args = ap.parse_args()

    cleaners = multiprocessing.Pool(1, initializer=clean.setup)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(ByteGRU())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    seen = step = 0
    start = time.time()
    for chunk in range(args.chunks):
        source, raw = sources.read_chunk(chunk, rank, world)
        texts = cleaners.map(clean.clean, raw, chunksize=16)
        for n, (x, y) in enumerate(to_batches(texts)):
            if n == args.steps_per_chunk:
                break
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            seen += x.numel() * world
            time.sleep(0.25)
        if rank == 0:
            print(f"chunk {chunk + 1}/{args.chunks} [{source}] step {step} loss {loss.item():.3f} "
                  f"{seen / (time.time() - start):,.0f} B/s", flush=True)
    cleaners.close()
    cleaners.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
