"""Student/EMA-teacher training. The teacher starts after the warm-up and is kept on the first two ranks."""
import copy
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WARMUP = int(os.getenv("WARMUP", "60"))
STEPS = 500
TEACHER_RANKS = [0, 1]


class Teacher:
    def __init__(self, student, group, decay=0.99):
        self.group = group
        self.decay = decay
        self.net = copy.deepcopy(student).requires_grad_(False)

    @torch.no_grad()
    def update(self, student):
        for t, s in zip(self.net.parameters(), student.parameters()):
            t.lerp_(s, 1 - self.decay)

    @torch.no_grad()
    def agree(self):
        """The copies drift by rounding; the first teacher rank is the reference."""
        for t in self.net.parameters():
            dist.broadcast(t, src=TEACHER_RANKS[0])


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        torch.manual_seed(4)
        self.student = DDP(self.build())
        self.opt = torch.optim.Adam(self.student.parameters(), lr=1e-3)
        self.teacher = None
        self.teacher_group = dist.new_group(TEACHER_RANKS)
        self.gen = torch.Generator().manual_seed(50 + self.rank)

    @staticmethod
    def build():
        return nn.Sequential(nn.Conv1d(1, 16, 5), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU(),
                             nn.Flatten(), nn.Linear(16 * 56, 3))

    def batch(self):
        time.sleep(0.15)
        x = torch.randn(24, 1, 64, generator=self.gen)
        return x, x.mean((1, 2)).mul(30).long().clamp(0, 2)

    def maybe_start_teacher(self, step):
        if step == WARMUP and self.rank in TEACHER_RANKS:
            self.teacher = Teacher(self.student.module, self.teacher_group)

    def train(self):
        for step in range(STEPS):
            self.maybe_start_teacher(step)
            x, y = self.batch()
            loss = nn.functional.cross_entropy(self.student(x), y)
            if self.teacher:
                loss = loss + nn.functional.mse_loss(self.student.module(x), self.teacher.net(x))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.teacher:
                self.teacher.update(self.student.module)
                if step % 20 == 0:
                    self.teacher.agree()
            if step % 10 == 0:
                print(f"rank={self.rank} step={step} loss={loss.item():.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer().train()
    dist.barrier()
    dist.destroy_process_group()
