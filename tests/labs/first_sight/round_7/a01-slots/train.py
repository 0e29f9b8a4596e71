import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TEXT = ("the quick brown fox jumps over the lazy dog while seven wizards box quietly "
        "and a jovial drummer plays for the mayor of a small town by the sea ") * 200


class CharLM(nn.Module):
    def __init__(self, vocab=128, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, 64, batch_first=True)
        self.out = nn.Linear(64, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=1)
    args = ap.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    print(f"[{rank}] slot {os.environ.get('SLOT')}, {world} ranks", flush=True)
    dist.init_process_group("gloo")
    ids = torch.tensor([ord(c) for c in TEXT])[rank::world]
    torch.manual_seed(0)
    model = DDP(CharLM())
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    step = 0
    for epoch in range(args.epochs):
        for i in range(0, len(ids) - 257, 256):
            x = ids[i:i + 256].view(4, 64)
            y = ids[i + 1:i + 257].view(4, 64)
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(os.environ["WORK"], "charlm.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
