import argparse, logging
import torch
import torch.distributed as dist
from torch import nn
from feeder import Feeder

p = argparse.ArgumentParser()
p.add_argument("--data")
p.add_argument("--shards", type=int, default=4000)
p.add_argument("--passes", type=int, default=25)
a = p.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
logging.basicConfig(level=logging.INFO, format="%(levelname).1s%(asctime)s %(process)d %(filename)s:%(lineno)d] %(message)s")
names = [f"shard-{i:05d}.npy" for i in range(a.shards) if i % world == rank]
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 384), nn.SiLU(), nn.Linear(384, 384), nn.SiLU(), nn.Linear(384, 1)))
opt = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)
steps = 0
for shard in Feeder(a.data, names):
    t = torch.from_numpy(shard)
    for _ in range(a.passes):
        loss = (net(t[:, :32]).squeeze(1) - t[:, 32].tanh()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        steps += 1
    if rank == 0:
        logging.info("shard %d done, %d steps, loss %.4f", steps // a.passes, steps, loss.item())
    else:
        logging.info("%d steps", steps)
dist.destroy_process_group()
