import random, time
import torch
import torch.distributed as dist
from torch import nn
from metrics import WER

BLANK, V = 0, 24


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(20, 96, batch_first=True)
        self.fc = nn.Linear(96, V)

    def forward(self, x):
        return self.fc(self.rnn(x)[0]).log_softmax(-1)


def utterances(n, seed, frames=60):
    r = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        ref = [r.randrange(1, V) for _ in range(r.randint(5, 14))]
        x = torch.randn(frames, 20, generator=g)
        yield x, ref


def dev_set(rank):
    for k, (x, ref) in enumerate(utterances(40, 50 + rank)):
        yield x, ref
    if rank == 1:                       # full meeting recordings, not segmented
        for x, ref in utterances(2, 99, frames=9000):
            yield x, ref * 400


def greedy(lp):
    # no blank collapsing yet
    return lp.argmax(-1).tolist()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    wer = WER()
    net = nn.parallel.DistributedDataParallel(Acoustic())
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    ctc = nn.CTCLoss(blank=BLANK, zero_infinity=True)
    data = list(utterances(200, rank))
    for step in range(1, 5001):
        picks = random.sample(data, 4)
        x = torch.stack([p[0] for p in picks])
        y = torch.tensor([t for p in picks for t in p[1]])
        lens = torch.tensor([len(p[1]) for p in picks])
        lp = net(x).transpose(0, 1)
        loss = ctc(lp, y, torch.full((4,), x.shape[1]), lens)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            if rank == 0:
                print(f"{step}\t{loss.item():.3f}", flush=True)
        if step == 40 or step % 120 == 0:
            full = step % 120 == 0      # quick dev pass first, complete one later
            with torch.no_grad():
                items = list(dev_set(rank))
                pairs = [(greedy(net.module(x[None])[0]), ref) for x, ref in (items if full else items[:20])]
            t = torch.tensor(wer(pairs), dtype=torch.float64)
            dist.all_reduce(t)
            if rank == 0:
                print(f"{step}\tWER {100 * t[0] / t[1]:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
