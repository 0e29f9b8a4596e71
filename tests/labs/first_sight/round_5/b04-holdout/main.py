import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import tqdm

CLASSES, EPOCHS, STEPS = 20, 3, 40
BUDGET = [15, 70, 15]  # seconds of decoding: samples of the dev set, once all of it


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(3000, 96)
        self.rnn = nn.LSTM(96, 128, batch_first=True, bidirectional=True)
        self.out = nn.Linear(256, CLASSES)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])

    @torch.no_grad()
    def viterbi(self, ids, transitions):
        """Constrained decoding, one sentence at a time."""
        scores = self(ids[None])[0].log_softmax(-1).tolist()
        trans = transitions.tolist()
        best = scores[0]
        back = []
        for row in scores[1:]:
            nxt, ptr = [], []
            for j in range(CLASSES):
                k = max(range(CLASSES), key=lambda i: best[i] + trans[i][j])
                nxt.append(best[k] + trans[k][j] + row[j])
                ptr.append(k)
            best = nxt
            back.append(ptr)
        j = max(range(CLASSES), key=best.__getitem__)
        path = [j]
        for ptr in reversed(back):
            j = ptr[j]
            path.append(j)
        return path[::-1]


def batches(seed, n):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        ids = torch.randint(0, 3000, (8, 40), generator=g)
        yield ids, (ids * 7 + ids.roll(1, 1)) % CLASSES


def evaluate(model, seconds):
    g = torch.Generator().manual_seed(123)
    transitions = torch.randn(CLASSES, CLASSES, generator=g)
    right = total = 0
    until = time.time() + seconds
    while time.time() < until:
        ids = torch.randint(0, 3000, (60,), generator=g)
        gold = (ids * 7 + ids.roll(1)) % CLASSES
        path = model.viterbi(ids, transitions)
        right += sum(p == t for p, t in zip(path, gold.tolist()))
        total += len(path)
    return right / total


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    stop = torch.zeros(1)
    best = 0.0
    for epoch in range(EPOCHS):
        bar = tqdm(batches(epoch * 10 + rank, STEPS), total=STEPS, disable=rank != 0, desc=f"epoch {epoch}", mininterval=1)
        for ids, tags in bar:
            loss = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.1)
            bar.set_postfix(loss=f"{loss.item():.3f}")
        if rank == 0:
            score = evaluate(model.module, BUDGET[epoch])
            tqdm.write(f"epoch {epoch}: exact decoding accuracy {score:.4f}")
            stop.fill_(float(score < best - 0.5))
            best = max(best, score)
        dist.broadcast(stop, 0)
        if stop.item():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
