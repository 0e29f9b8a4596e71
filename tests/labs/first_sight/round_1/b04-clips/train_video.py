import glob
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm import tqdm
from video import decode


class Clips(Dataset):
    def __init__(self):
        self.paths = sorted(glob.glob("clips/*.clip"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        v = decode(self.paths[i])
        return torch.from_numpy(v), int(v.mean() * 1000) % 5


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = torch.nn.Conv3d(1, 16, 3, padding=1, stride=(1, 2, 2))
        self.c2 = torch.nn.Conv3d(16, 32, 3, padding=1, stride=2)
        self.fc = torch.nn.Linear(32, 5)

    def forward(self, x):
        x = torch.relu(self.c1(x.unsqueeze(1)))
        x = torch.relu(self.c2(x))
        return self.fc(x.mean((2, 3, 4)))


def run():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    ds = Clips()
    cut = 40
    train = DataLoader(Subset(ds, range(rank, cut, world)), batch_size=4, shuffle=True)
    valid = DataLoader(Subset(ds, range(cut + rank, len(ds), world)), batch_size=4)
    net = torch.nn.parallel.DistributedDataParallel(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in range(50):
        net.train()
        bar = tqdm(range(10), desc=f"epoch {epoch}", disable=rank != 0, ncols=80)
        for _ in bar:
            for x, y in train:
                loss = torch.nn.functional.cross_entropy(net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            bar.set_postfix(loss=f"{loss.item():.3f}")
        net.eval()
        hits = torch.zeros(2)
        with torch.no_grad():
            for x, y in valid:
                hits += torch.tensor([(net.module(x).argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(hits)
        if rank == 0:
            tqdm.write(f"valid acc {hits[0] / hits[1]:.3f}")


if __name__ == "__main__":
    run()
