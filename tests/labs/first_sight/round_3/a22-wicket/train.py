import os
import time

import torch
import torch.distributed as dist
from torch import nn

STATE = "work/state.pt"


class Lock:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        while True:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                return
            except FileExistsError:
                time.sleep(2)

    def __exit__(self, *exc):
        os.unlink(self.path)


def publish(net, step):
    """For the demo page: it reads the file while it holds the same lock."""
    with Lock("work/publish.lock"):
        with open("work/weights.bin", "wb") as f:
            for p in net.parameters():
                f.write(p.detach().numpy().tobytes())
                time.sleep(2.0)


def batch(rank, step):
    attempt = int(os.environ["ATTEMPT"])
    x = torch.randn(16, 28)
    if rank == 1 and step == 61 and attempt == 0:
        x = x[:, :27]  # the truncated record of shard 7; readers skip it the second time
    return x, torch.randint(0, 6, (16,))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.makedirs("work", exist_ok=True)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(28, 40), nn.ReLU(), nn.Linear(40, 6)))
    opt = torch.optim.SGD(net.parameters(), 0.05)
    step = 0
    if os.path.exists(STATE):
        saved = torch.load(STATE)
        net.load_state_dict(saved["net"])
        step = saved["step"]
        if rank == 0:
            print(f"resumed at step {step}", flush=True)
    while step < 3000:
        step += 1
        x, y = batch(rank, step)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.15)
        if rank == 0:
            if step % 10 == 0:
                print(f"step {step}/3000 loss {loss.item():.4f}", flush=True)
            if step % 20 == 0:
                torch.save({"net": net.state_dict(), "step": step}, STATE + ".tmp")
                os.replace(STATE + ".tmp", STATE)
            if step % 60 == 0:
                publish(net, step)


if __name__ == "__main__":
    main()
