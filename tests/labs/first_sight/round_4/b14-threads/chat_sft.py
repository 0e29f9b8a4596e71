import time

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from conversations import Samples


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    samples = Samples(rank)
    torch.manual_seed(4)
    net = DDP(torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)))
    opt = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    for step in range(2000):
        feats = torch.tensor(samples.next(4), dtype=torch.float32) / 1000.0
        loss = net(feats).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.22)
        if step in (0, 1, 2, 5, 10, 20, 50) or step % 100 == 0:
            if rank == 0:
                print("it %4d  loss %.5f  depth %.1f" % (step, loss.item(), feats[:, 0].mean() * 1000), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
