import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import index
from dataset import Indexed

EPOCHS, ROWS = 20, 800


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(180, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    index.refresh(rank, 0)
    index.size()
    for epoch in range(EPOCHS):
        if epoch:
            index.refresh(rank, epoch)
        loader = DataLoader(Indexed(ROWS), batch_size=16, shuffle=True, num_workers=2)
        seen = right = 0
        for x, y in loader:
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(y)
            right += (logits.argmax(1) == y).sum().item()
        acc = torch.tensor([right / seen])
        dist.all_reduce(acc)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {acc.item() / dist.get_world_size():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
