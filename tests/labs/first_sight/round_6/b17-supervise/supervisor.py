"""Keeps the workers alive: one that ends with an error is started again."""
import os
import subprocess
import sys
import time
from datetime import timedelta

import torch.distributed as dist

WORLD = 3
MAX_RESTARTS = 10


def start(rank, restarts, port):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(WORLD), STORE_PORT=str(port), RESTARTS=str(restarts),
               OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    return subprocess.Popen([sys.executable, "worker.py"], env=env)


def main():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(hours=1))
    restarts = [0] * WORLD
    procs = [start(r, 0, store.port) for r in range(WORLD)]
    done = set()
    while len(done) < WORLD:
        time.sleep(0.5)
        for r, p in enumerate(procs):
            code = p.poll()
            if code is None or r in done:
                continue
            if code == 0:
                done.add(r)
                continue
            restarts[r] += 1
            if restarts[r] > MAX_RESTARTS:
                print(f"supervisor: worker {r} failed too often", flush=True)
                return 1
            print(f"supervisor: worker {r} ended with {code}, start number {restarts[r] + 1}", flush=True)
            procs[r] = start(r, restarts[r], store.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
