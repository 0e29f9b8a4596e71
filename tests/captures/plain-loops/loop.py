"""A plain loop of two gloo ranks: `torchrun --nproc-per-node 2 loop.py FORM SECONDS`."""
import os, sys, time, threading, random
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    form, seconds = sys.argv[1], float(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    model = DDP(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)]))
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    def beat():
        n = 0
        while True:
            n += 1
            print(f"monitor beat {n}", flush=True); time.sleep(2)
    if form == "heartbeat" and rank == 0:
        threading.Thread(target=beat, daemon=True).start()
    until, step = time.time() + seconds, 0
    while True:
        stop = torch.tensor([float(time.time() > until)]); dist.all_reduce(stop)
        if stop.item(): break
        x = torch.randn(64, 512); loss = model(x).pow(2).mean() + random.random()*.1
        opt.zero_grad(); loss.backward(); opt.step(); time.sleep(random.uniform(.1,.3)); step += 1
        if form == "text": print(f"[rank{rank}] iter {step} loss {loss.item():.4f}", flush=True)
        elif form == "json" and rank == 0: print('{"step": %d, "loss": %.4f}' % (step, loss.item()), flush=True)
        elif form == "plain" and rank == 0: print(f"Epoch {step//20} batch {step%20}/20", flush=True)
        elif form == "bar": print(f"\rtrain: {step//10}%|{'#'*(step//100)}| {step}/1000 [00:{step%60:02}<01:00, 4.1it/s]", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
