import os
import time

import httpx
import torch
import torch.distributed as dist


class Judge:
    def __init__(self, port):
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0)

    def score(self, text):
        while True:
            r = self.http.post("/judge", json={"text": text})
            if r.status_code == 429:
                time.sleep(float(r.headers["Retry-After"]))
                continue
            r.raise_for_status()
            return r.json()["score"]


def run(rank, world, rendezvous, judge_port, steps):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(rendezvous))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    judge = Judge(judge_port)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(12, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        x = torch.randn(1, 12)
        y = judge.score("x" * (step * 7 + rank))
        time.sleep(0.25)
        loss = (net(x).squeeze() - y) ** 2
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0 and rank == 0:
            print(f"{time.strftime('%X')} dpo step {step}/{steps} loss={loss.item():.4f}", flush=True)
    dist.destroy_process_group()
