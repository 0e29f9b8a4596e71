import os, shutil
import requests
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Blob(Dataset):
    def __init__(self, path, n, seq=64):
        self.path, self.n, self.seq = path, n, seq
        self.stride = (os.path.getsize(path) - seq - 1) // n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        with open(self.path, "rb") as f:
            f.seek(i * self.stride)
            return torch.tensor(list(f.read(self.seq + 1)))


class LM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(256, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, 256)

    def forward(self, x):
        return self.o(self.r(self.e(x))[0])


def corpus(stage, rank):
    path = f"cache/stage{stage}.bin"
    if rank == 0 and not os.path.exists(path):
        if stage == 1:
            with open(path, "wb") as f:
                f.write(os.urandom(1 << 20))
        else:
            print(f"stage {stage}: fetching corpus", flush=True)
            with requests.get(f"{os.environ['HUB_URL']}/stage{stage}.bin", stream=True, timeout=30) as r:
                r.raise_for_status()
                with open(path + ".part", "wb") as f:
                    shutil.copyfileobj(r.raw, f, 1 << 20)
            os.rename(path + ".part", path)
    dist.barrier()
    return path


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = nn.parallel.DistributedDataParallel(LM())
    opt = torch.optim.AdamW(net.parameters(), 2e-3)
    for stage in (1, 2):
        data = Blob(corpus(stage, rank), 3200)
        loader = DataLoader(data, 16, sampler=DistributedSampler(data), num_workers=1)
        for it, b in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(net(b[:, :-1]).transpose(1, 2), b[:, 1:])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0 and it % 10 == 0:
                print(f"stage {stage} it {it}/{len(loader)} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("done", flush=True)


if __name__ == "__main__":
    main()
