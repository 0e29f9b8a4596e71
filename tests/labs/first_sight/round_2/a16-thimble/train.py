import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCAB, EOS = 40, 39
PAD = EOS  # there is no other
STEPS, SHOW = 400, 80


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, VOCAB)

    def forward(self, ids, state=None):
        hidden, state = self.rnn(self.emb(ids), state)
        return self.out(hidden), state


def sentences(gen, n=16):
    rows = torch.full((n, 13), PAD)
    for row in rows:
        length = int(torch.randint(5, 12, (1,), generator=gen))
        row[:length] = (int(torch.randint(EOS, (1,), generator=gen)) + torch.arange(length) * 3) % EOS
    return rows


@torch.no_grad()
def show(model, gen, temperature=0.8):
    """Some sentences of each rank. All go on until the last is complete, as sharded models need it."""
    ids = torch.randint(EOS, (4, 1), generator=gen)
    state, text = None, [ids]
    open_ = torch.ones(4, dtype=torch.bool)
    while True:
        logits, state = model(ids, state)
        logits = logits[:, -1] / temperature
        logits[:, PAD] = float("-inf")
        ids = torch.multinomial(logits.softmax(-1), 1, generator=gen)
        open_ &= ids[:, 0] != EOS
        text.append(ids)
        left = open_.sum()
        dist.all_reduce(left)
        if left == 0:
            return torch.cat(text, 1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gen = torch.Generator().manual_seed(rank + 3)
    model = DistributedDataParallel(Model())
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(1, STEPS + 1):
        rows = sentences(gen)
        logits, _ = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.1)
        if step % 20 == 0 and rank == 0:
            print(f"{step}/{STEPS} loss {loss.item():.3f}", flush=True)
        if step % SHOW == 0:
            text = show(model.module, gen)
            print(f"[{rank}] {text[0].tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
