import os
import signal
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn


class Trainer:
    def __init__(self, folder):
        self.rank = dist.get_rank()
        self.folder = folder
        self.model = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 256))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.step = 0
        self.weights = threading.Lock()     # a snapshot never sees half of an update
        if self.rank == 0:
            threading.Thread(target=self._periodic, daemon=True).start()
            signal.signal(signal.SIGUSR1, lambda *_: self.snapshot("requeue"))
        else:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _periodic(self):
        while True:
            time.sleep(6)
            self.snapshot("auto")

    def snapshot(self, tag):
        with self.weights:
            torch.save({"step": self.step, "model": self.model.state_dict()},
                       os.path.join(self.folder, f"{tag}.pt"))
        print(f"snapshot {tag} at step {self.step}", flush=True)

    def train_step(self):
        with self.weights:
            x = torch.randn(512, 256)
            loss = (self.model(x) - x.sin()).square().mean()
            self.opt.zero_grad()
            loss.backward()
            for p in self.model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
            self.opt.step()
            self.step += 1
        return loss.item()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    trainer = Trainer(os.environ["RUN_DIR"])
    with open(os.path.join(os.environ["RUN_DIR"], f"rank{trainer.rank}.pid"), "w") as f:
        f.write(str(os.getpid()))
    tic, mean = time.time(), 0.0
    while trainer.step < 4000:
        mean = 0.98 * mean + 0.02 * trainer.train_step()
        if trainer.step % 25 == 0:
            print(f"rank={trainer.rank} step={trainer.step} ema_loss={mean:.4f} "
                  f"sps={trainer.step / (time.time() - tic):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
