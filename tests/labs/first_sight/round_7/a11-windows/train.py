import csv
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from windows import Window

WINDOWS, STEPS = 12, 50


class Predictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(8, 48, batch_first=True)
        self.out = nn.Linear(48, 8)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


class Report:
    """Losses per window, and the window on which the model does worst, to plot at the end."""

    def __init__(self, path):
        self.file = open(path, "w", newline="")
        self.rows = csv.writer(self.file)
        self.worst, self.window = -1.0, None

    def add(self, window, losses):
        mean = sum(losses) / len(losses)
        self.rows.writerow([window.number, f"{mean:.5f}", f"{losses[-1]:.5f}"])
        self.file.flush()
        if mean > self.worst:
            self.worst, self.window = mean, window


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    folder = [tempfile.mkdtemp(prefix="signal-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    folder = folder[0]
    report = Report(os.path.join(folder, "report.csv")) if rank == 0 else None
    torch.manual_seed(0)
    model = DDP(Predictor())
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    gen = torch.Generator().manual_seed(rank)
    for number in range(WINDOWS):
        window = Window(folder, number)
        losses = []
        for step in range(STEPS):
            x, y = window.batch(8, 32, gen)
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        if report:
            report.add(window, losses)
            print(f"window {number + 1}/{WINDOWS} mse {losses[-1]:.5f}", flush=True)
        del window
    if report:
        print(f"worst window: {report.window.number}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
