"""Three stages, GPipe order: all forwards of a batch, then all backwards."""
import sys

import torch
import torch.distributed as dist

from channel import Channel
from conf import EPOCHS, EVAL_EVERY, LR, MICRO
from corpus import Corpus
from stages import stage_for


class Worker:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(self.rank)
        self.net = stage_for(self.rank, self.world)
        self.ch = Channel(self.rank, self.world)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=LR)
        self.corpus = Corpus(1296)
        self.count = 0

    def first_stage(self, micros):
        outs = []
        for m in micros:
            y = self.net(m[:, :-1])
            self.ch.hand_on(y)
            outs.append(y)
        for y in outs:
            y.backward(self.ch.take_grad())

    def middle_stage(self):
        pairs = []
        for _ in range(MICRO):
            x = self.ch.take_input()
            y = self.net(x)
            self.ch.hand_on(y)
            pairs.append((x, y))
        for x, y in pairs:
            y.backward(self.ch.take_grad())
            self.ch.hand_back(x.grad)

    def last_stage(self, micros):
        kept, total = [], 0.0
        for i in range(MICRO):
            x = self.ch.take_input()
            kept.append((x, self.net(x, micros[i % len(micros)][:, 1:]) / MICRO))
        for x, loss in kept:
            loss.backward()
            total += loss.item()
            self.ch.hand_back(x.grad)
        return total

    def batch(self, micros):
        self.opt.zero_grad()
        loss = 0.0
        if self.ch.first:
            self.first_stage(micros)
        elif self.ch.last:
            loss = self.last_stage(micros)
        else:
            self.middle_stage()
        self.ch.flush()
        self.opt.step()
        self.count += 1
        if self.count % EVAL_EVERY == 0:
            t = torch.tensor([loss])
            dist.broadcast(t, src=self.world - 1)
            if self.rank == 0:
                print(f"batch {self.count} loss {t.item():.4f}", file=sys.stderr, flush=True)

    def train(self):
        for e in range(EPOCHS):
            for micros in self.corpus.epoch(e):
                self.batch(micros)
            if self.rank == 0:
                print(f"epoch {e} done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    Worker().train()
    dist.destroy_process_group()
