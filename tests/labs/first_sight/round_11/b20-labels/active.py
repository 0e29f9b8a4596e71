"""Active learning: rank 0 asks for labels of the uncertain samples, all ranks learn from them."""
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import torch
import torch.distributed as dist
from torch import nn

logging.basicConfig(level=logging.WARNING)
log = logging.getLogger("active")


def start_service():
    path = os.path.join(tempfile.mkdtemp(prefix="labels"), "port")
    service = subprocess.Popen([sys.executable, "label_service.py", path])
    while not os.path.exists(path) or not open(path).read():
        time.sleep(0.2)
    return service, int(open(path).read())


def ask(port, items, tries=12):
    req = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps(items).encode(), method="POST")
    for attempt in range(tries):
        try:
            with urllib.request.urlopen(req, timeout=30) as r:
                return json.load(r)
        except urllib.error.HTTPError as e:
            if e.code != 503:
                raise
            log.debug("busy, attempt %d", attempt)
            time.sleep(float(e.headers["Retry-After"]))
    raise RuntimeError("no labels")


def main(rounds=20, per_round=48, steps=25):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(30, 48), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
    model = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    g = torch.Generator().manual_seed(1)
    service, port = start_service() if rank == 0 else (None, 0)
    xs, ys = [], []
    for r in range(rounds):
        pool = torch.randint(0, 30, (400, 5), generator=g)
        with torch.no_grad():
            doubt = net(pool).softmax(-1).max(-1).values
        new = pool[doubt.argsort()[:per_round]]
        labels = torch.zeros(per_round, dtype=torch.long)
        if rank == 0:
            labels = torch.tensor(ask(port, new.tolist()))
        dist.broadcast(labels, src=0)
        xs.append(new)
        ys.append(labels)
        x, y = torch.cat(xs)[rank::world], torch.cat(ys)[rank::world]
        for s in range(steps):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"round {r:2d}: {len(x) * world} labels, loss {loss.item():.3f}", flush=True)
    if service:
        service.terminate()
        service.wait()
    dist.destroy_process_group()


main()
