import os
import torch
import torch.distributed as dist
from torch import nn
from ngram import Overlap

VOCAB, SEQ, BATCH = 2000, 64, 8
SOURCES = ["forum", "forum", "code"]          # one source per rank


def stream(source, seed):
    g = torch.Generator().manual_seed(seed)
    # forum text repeats itself a lot, code less so
    phrases = torch.randint(0, VOCAB, (40, 16), generator=g)
    while True:
        rows = []
        for _ in range(BATCH):
            if source == "forum":
                pick = torch.randint(0, 40, (SEQ // 16,), generator=g)
                rows.append(phrases[pick].reshape(-1))
            else:
                rows.append(torch.randint(0, VOCAB, (SEQ,), generator=g))
        yield torch.stack(rows)


class LM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.e = nn.Embedding(VOCAB, d)
        self.r = nn.GRU(d, d, batch_first=True)
        self.o = nn.Linear(d, VOCAB)

    def forward(self, x):
        return self.o(self.r(self.e(x))[0])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(LM())
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    overlap = Overlap()
    for step, batch in enumerate(stream(SOURCES[rank], rank), 1):
        weight = torch.tensor([1.0 - 0.5 * overlap.add(row) for row in batch])
        logits = model(batch[:, :-1])
        tok = nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")
        loss = (tok.mean(1) * weight).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"[{SOURCES[rank]}/{rank}] {step:>6} {loss.item():.3f}", flush=True)
        if step == 3000:
            break
    dist.destroy_process_group()


main()
