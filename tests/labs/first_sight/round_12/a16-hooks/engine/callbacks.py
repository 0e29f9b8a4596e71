import time

import torch
import torch.distributed as dist


class Callback:
    def on_start(self, trainer, steps):
        pass

    def on_step(self, trainer, step, losses, lang):
        pass

    def on_end(self, trainer):
        pass


class Progress(Callback):
    def __init__(self, every=50):
        self.every = every

    def on_start(self, trainer, steps):
        self.steps, self.t = steps, time.time()

    def on_step(self, trainer, step, losses, lang):
        if trainer.rank == 0 and step % self.every == 0:
            left = (time.time() - self.t) / step * (self.steps - step)
            print(f"{step * 100 // self.steps:3d}%|{step}/{self.steps} [{left:.0f}s left] loss={losses.mean():.4f}",
                  flush=True)


class LanguageReport(Callback):
    def __init__(self, languages, every=50):
        self.languages = languages
        self.every = every
        self.reset()

    def reset(self):
        self.sums, self.counts = {}, {}

    def on_step(self, trainer, step, losses, lang):
        for name, value in zip(lang, losses.tolist()):
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
        if step % self.every:
            return
        means = {name: self.sums[name] / self.counts[name] for name in self.languages}
        self.reset()
        everyone = [None] * trainer.world
        dist.all_gather_object(everyone, means)
        if trainer.rank == 0:
            print("     " + "  ".join(f"{n} {sum(e[n] for e in everyone) / len(everyone):.3f}" for n in self.languages),
                  flush=True)
