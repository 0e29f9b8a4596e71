"""The generation engine of one trainer rank: a process of its own, fed through a pipe."""
import multiprocessing as mp

import torch


def _policy():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def serve(conn, samples, seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    policy = _policy()
    while True:
        what, arg = conn.recv()
        if what == "stop":
            break
        if what == "weights":
            policy.load_state_dict(arg)
            conn.send("loaded")
        elif what == "generate":
            for prompt in arg:
                obs = torch.randn(16, generator=torch.Generator().manual_seed(prompt))
                with torch.no_grad():
                    dist = torch.distributions.Categorical(logits=policy(obs))
                action = dist.sample((8,))
                reward = (action == prompt // 5000).float()
                samples.put((prompt, obs.tolist(), action.tolist(), reward.tolist()))


class Engine:
    def __init__(self, seed, depth=16):
        ctx = mp.get_context("spawn")
        self.conn, theirs = ctx.Pipe()
        self.samples = ctx.Queue(maxsize=depth)
        self.proc = ctx.Process(target=serve, args=(theirs, self.samples, seed), daemon=True)
        self.proc.start()
        theirs.close()

    def generate(self, prompts):
        self.conn.send(("generate", prompts))

    def update_weights(self, state):
        self.conn.send(("weights", state))
        assert self.conn.recv() == "loaded"

    def take(self, n):
        return [self.samples.get() for _ in range(n)]

    def close(self):
        self.conn.send(("stop", None))
        self.proc.join()
