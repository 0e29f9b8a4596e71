import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tracker import Tracker

STEPS_PER_EPOCH, EPOCHS = 144, 50


class Forecaster(nn.Module):
    def __init__(self, lags=48, hidden=96):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 6)

    def forward(self, x):
        return self.out(self.rnn(x[..., None])[0][:, -1])


def series(n, gen):
    phase = torch.rand(n, 1, generator=gen) * 6.28
    freq = torch.rand(n, 1, generator=gen) * 0.5 + 0.1
    t = torch.arange(54)[None]
    y = (t * freq + phase).sin() + torch.randn(n, 54, generator=gen) * 0.05
    return y[:, :48], y[:, 48:]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(rank)
    model = DDP(Forecaster())
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    track = Tracker("runs.db", rank)
    step = 0
    for epoch in range(EPOCHS):
        total = 0.0
        for _ in range(STEPS_PER_EPOCH):
            x, y = series(16, gen)
            loss = nn.functional.huber_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            gnorm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            step += 1
            total += loss.item()
            track.add(epoch, step, loss.item(), gnorm.item())
            if rank == 0 and step % 50 == 0:
                print(f"{step:6d}  {loss.item():.5f}  |g| {gnorm:.3f}", flush=True)
            time.sleep(0.1)
        if rank == 0:
            print(f"== epoch {epoch} mean loss {total / STEPS_PER_EPOCH:.5f}", flush=True)
    track.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
