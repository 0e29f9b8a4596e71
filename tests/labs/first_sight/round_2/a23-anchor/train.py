import contextlib
import json
import signal
import threading
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tracker:
    """Rows of numbers, written every now and then."""

    def __init__(self, path, every):
        self.path, self.every, self.rows = path, every, []
        self.lock = threading.Lock()
        signal.signal(signal.SIGALRM, self.on_time)
        signal.alarm(every)

    @contextlib.contextmanager
    def row(self, step):
        with self.lock:  # a row is there as a whole or not at all
            row = {"step": step, "began": time.time()}
            yield row
            row["took"] = time.time() - row["began"]
            self.rows.append(row)

    def write(self):
        with self.lock:
            with open(self.path, "a") as f:
                f.writelines(json.dumps(row) + "\n" for row in self.rows)
            self.rows.clear()

    def on_time(self, signum, frame):
        self.write()
        signal.alarm(self.every)


def endless(loader):
    while True:
        yield from loader


def main():
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(4096, 28)
    data = DataLoader(TensorDataset(x, x.cumsum(1)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(28, 56), nn.GELU(), nn.Linear(56, 28))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, opt, data = accelerator.prepare(model, opt, data)
    tracker = Tracker("rows.jsonl", every=25) if accelerator.is_last_process else None
    batches = endless(data)
    for step in range(800):
        with tracker.row(step) if tracker else contextlib.nullcontext({}) as row:
            a, b = next(batches)
            loss = nn.functional.mse_loss(model(a), b)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
            row["loss"] = loss.item()
            time.sleep(0.12)
        if step % 50 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)
    if tracker:
        tracker.write()
    accelerator.end_training()


if __name__ == "__main__":
    main()
