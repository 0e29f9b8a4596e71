import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from histograms import HistogramLog


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = torch.nn.Linear(48, 96)
        self.dec = torch.nn.Linear(96, 48)

    def forward(self, x):
        return self.dec(torch.relu(self.enc(x)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=900)
    ap.add_argument("--freeze-encoder-at", type=int, default=30)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(Net())
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    hist = HistogramLog() if rank == 0 else None
    enc_scale = 1.0
    for step in range(1, args.steps + 1):
        if step == args.freeze_encoder_at:
            enc_scale = 0.0
        x = torch.randn(32, 48)
        time.sleep(0.15)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        net.module.enc.weight.grad.mul_(enc_scale)
        net.module.enc.bias.grad.mul_(enc_scale)
        opt.step()
        if hist:
            hist.log(step, "enc.weight.grad", net.module.enc.weight.grad.numpy())
            hist.log(step, "dec.weight", net.module.dec.weight.detach().numpy())
            if step % 10 == 0:
                print(f"Epoch [1/1]  Step [{step}/{args.steps}]  Loss: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
