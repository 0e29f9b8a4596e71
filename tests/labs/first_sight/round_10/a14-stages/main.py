import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from conf import Conf
from pipeline import Pipeline, Stage


def dataset(conf):
    g = torch.Generator().manual_seed(77)
    centre = torch.randn(conf.classes, conf.width, generator=g)
    y = torch.randint(0, conf.classes, (conf.samples,), generator=g)
    return TensorDataset(centre[y] + torch.randn(conf.samples, conf.width, generator=g), y)


def main():
    conf = Conf()
    for word in sys.argv[1:]:
        key, value = word.lstrip("-").split("=")
        setattr(conf, key.replace("-", "_"), type(getattr(conf, key.replace("-", "_")))(value))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    stage = Stage(conf, rank, world)
    pipe = Pipeline(stage, conf, rank)
    opt = torch.optim.SGD(stage.parameters(), conf.lr, momentum=0.9)
    # the same order on every stage: the first needs the inputs, the last the labels
    loader = DataLoader(dataset(conf), conf.batch, shuffle=True, generator=torch.Generator().manual_seed(1))
    step, t0 = 0, time.time()
    for epoch in range(conf.epochs):
        for x, y in loader:
            opt.zero_grad()
            loss = None
            if stage.first:
                pipe.feed(x)
            elif stage.last:
                loss = pipe.finish(y)
            else:
                pipe.relay()
            opt.step()
            step += 1
            if loss is not None and step % conf.log_every == 0:
                print(f"epoch {epoch} step {step} loss {loss:.4f} ({(time.time() - t0) / step * 1e3:.0f} ms)", flush=True)
            time.sleep(0.04)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
