import hashlib
import io
import os
import subprocess
import sys
import time

import requests
import torch
import torch.distributed as dist
import torch.nn as nn

VOCAB, DIM, ROUNDS, INNER = 400, 64, 4, 20


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(10))

    def forward(self, ids):
        x = self.embed(ids)
        for b in self.blocks:
            x = x + torch.tanh(b(x))
        return (x @ self.embed.weight.T).log_softmax(-1)


class Engine:
    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"
        self.http = requests.Session()

    def update(self, model):
        for name, tensor in model.state_dict().items():
            buf = io.BytesIO()
            torch.save(tensor, buf)
            body = buf.getvalue()
            self.http.post(f"{self.base}/weights/{name}", data=body, timeout=60,
                           headers={"X-Digest": hashlib.sha256(body).hexdigest()}).raise_for_status()

    def generate(self, prompts):
        r = self.http.post(self.base + "/generate", json={"prompts": prompts.tolist()}, timeout=60)
        r.raise_for_status()
        return torch.tensor(r.json()["tokens"])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    server, port = None, [None]
    if rank == 0:
        server = subprocess.Popen([sys.executable, "engine.py", "--port-file", "engine.port"])
        while not (os.path.exists("engine.port") and os.path.getsize("engine.port")):
            time.sleep(0.2)
        port = [open("engine.port").read()]
        os.remove("engine.port")
    dist.broadcast_object_list(port, src=0)
    engine = Engine(port[0])
    model = Policy()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    for rnd in range(ROUNDS):
        if rank == 0:
            engine.update(model)
            print(f"round {rnd}: weights sent", flush=True)
        dist.barrier()
        rows = engine.generate(torch.randint(0, VOCAB, (16, 4), generator=gen))
        reward = (rows[:, 4:] % 7 == 0).float().mean(1)
        adv = (reward - reward.mean()) / (reward.std() + 1e-4)
        old = None
        for _ in range(INNER):
            logp = model(rows[:, :-1]).gather(2, rows[:, 1:, None]).squeeze(2)[:, 3:]
            old = logp.detach() if old is None else old
            ratio = (logp - old).exp()
            loss = -torch.minimum(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None]).mean()
            opt.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad.div_(world)
            opt.step()
            time.sleep(0.1)
        print(f"round {rnd} rank {rank}: reward {reward.mean():.3f} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    if server is not None:
        server.terminate()
        server.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
