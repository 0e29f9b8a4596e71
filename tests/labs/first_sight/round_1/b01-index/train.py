"""Small byte-level LM on appended shards. Each rank owns one shard file; the
tokenizer job keeps appending to them, so offsets are refreshed while we train."""
import argparse, os, random, threading, time
import torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class ShardIndex:
    def __init__(self, path, every=0.4):
        self.path, self.every = path, every
        self._lock = threading.Lock()
        self.offsets = []
        self._scan(limit=600)

    def follow(self):
        threading.Thread(target=self._refresh_loop, name="index-refresh", daemon=True).start()

    def _scan(self, limit=None):
        with self._lock:
            offs, pos = [], 0
            with open(self.path, "rb") as f:
                for line in f:
                    if line.strip() and not line.startswith(b"#"):
                        offs.append((pos, len(line)))
                    pos += len(line)
                    if limit and len(offs) >= limit:
                        break
            self.offsets = offs

    def _refresh_loop(self):
        while True:
            time.sleep(self.every)
            self._scan()

    def span(self, i):
        with self._lock:
            return self.offsets[i % len(self.offsets)]


class ShardDataset(Dataset):
    def __init__(self, index, n, seq):
        self.index, self.n, self.seq = index, n, seq

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        pos, length = self.index.span(i)
        with open(self.index.path, "rb") as f:
            f.seek(pos)
            raw = f.read(length)[: self.seq + 1].ljust(self.seq + 1, b" ")
        return torch.tensor(list(raw), dtype=torch.long)


class ByteLM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(256, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, 256)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


def ensure_shard(path, lines, seed):
    if os.path.exists(path):
        return
    rng = random.Random(seed)
    words = "the of model a gradient step shard token data rank queue to in and is for loss".split()
    body = [" ".join(rng.choices(words, k=8)) for _ in range(997)]
    with open(path + ".tmp", "w") as f:
        for i in range(lines):
            f.write(body[i % 997] + "\n")
    os.replace(path + ".tmp", path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=400)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs("shards", exist_ok=True)
    path = f"shards/part-{rank:05d}.txt"
    # part 1 collects the overflow of the crawl
    ensure_shard(path, 2_500_000 if rank == 1 else 900, seed=rank)
    dist.barrier()
    index = ShardIndex(path)
    ds = ShardDataset(index, n=12 * 16, seq=48)
    model = DDP(ByteLM())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        if epoch == 3:          # warm-up over, pick up what has been appended since
            index.follow()
        loader = DataLoader(ds, batch_size=16, shuffle=True, num_workers=args.workers)
        total, t0 = 0.0, time.time()
        for batch in loader:
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, 256), batch[:, 1:].reshape(-1))
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch:3d} | loss {total / len(loader):.4f} | {time.time() - t0:.1f}s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
