"""Desktop trainer: the fit runs in a thread, the main thread shows the state."""
import json
import logging
import queue
import threading
import time

import torch
from torch import nn

logging.basicConfig(filename="/tmp/fs-c06-app.log", level=logging.INFO)
log = logging.getLogger("app")


def records(n):
    for i in range(n):
        label = "n/a" if i == 4407 else (i * 7) % 5
        yield json.dumps({"id": i, "v": [(i * k % 13) / 13 for k in range(1, 9)], "label": label})


class BatchFeeder(threading.Thread):
    def __init__(self, size=16, depth=8):
        super().__init__(name="feeder", daemon=True)
        self.size, self.batches = size, queue.Queue(depth)

    def run(self):
        xs, ys = [], []
        try:
            for line in records(10 ** 6):
                row = json.loads(line)
                xs.append(row["v"])
                ys.append(int(row["label"]))
                if len(xs) == self.size:
                    self.batches.put((torch.tensor(xs), torch.tensor(ys)))
                    xs, ys = [], []
        except ValueError as e:
            log.warning("feeder ended: %s", e)


class Fit(threading.Thread):
    def __init__(self, feeder, steps):
        super().__init__(name="fit")
        self.feeder, self.steps = feeder, steps
        self.step, self.loss = 0, float("nan")

    def run(self):
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 5))
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        while self.step < self.steps:
            x, y = self.feeder.batches.get()
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            time.sleep(0.12)
            self.step, self.loss = self.step + 1, loss.item()


def main():
    torch.set_num_threads(1)
    feeder = BatchFeeder()
    feeder.start()
    fit = Fit(feeder, 5000)
    fit.start()
    shown = 0
    while fit.is_alive():
        fit.join(0.5)
        if fit.step - shown >= 20:
            shown = fit.step
            print(f"[{shown:>5}/{fit.steps}] loss={fit.loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
