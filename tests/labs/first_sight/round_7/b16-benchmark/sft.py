import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import suite

VOCAB = 50


class GRULM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 48)
        self.rnn = nn.GRU(48, 96, batch_first=True)
        self.head = nn.Linear(96, VOCAB)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s - %(levelname)s - %(name)s - %(message)s")
    log = logging.getLogger("sft")
    torch.manual_seed(0)
    net = GRULM()
    model = DistributedDataParallel(net)
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(1, 241):
        p = torch.randint(0, VOCAB, (16, 12), generator=g)
        x = torch.cat([p, p], 1)
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(0.05)
        if step % 30 == 0:
            log.info("step %d/240 loss %.4f lr %.1e", step, loss.item(), 2e-3)
        if step == 180:
            if rank == 0:
                net.eval()
                for name, score in suite.run(net, VOCAB).items():
                    log.info("benchmark %s %.3f", name, score)
                net.train()
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
