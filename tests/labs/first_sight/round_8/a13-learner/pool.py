import torch.multiprocessing as mp

from actor import play


class ActorPool:
    def __init__(self, env, n, seed):
        self.ctx = mp.get_context("spawn")
        self.env, self.seed, self.made = env, seed, 0
        self.queue = self.ctx.Queue(4)
        self.actors = [None] * n

    def launch(self, i, weights):
        self.made += 1
        p = self.ctx.Process(target=play, args=(self.env, weights, self.queue, self.seed + self.made), daemon=True)
        p.start()
        self.actors[i] = p

    def start(self, weights):
        for i in range(len(self.actors)):
            self.launch(i, weights)

    def renew(self, i, weights):
        """An actor with an old policy makes way for one with the present policy."""
        self.actors[i].terminate()
        self.actors[i].join()
        self.launch(i, weights)

    def episode(self):
        return self.queue.get()

    def stop(self):
        for p in self.actors:
            p.kill()
