import math, os, subprocess, sys, time
import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from tracking import Run


def start_server():
    if os.path.exists("trackd.port"):
        os.remove("trackd.port")
    subprocess.Popen([sys.executable, "trackd.py", "trackd.port"])
    while not (os.path.exists("trackd.port") and open("trackd.port").read()):
        time.sleep(0.1)
    return "http://127.0.0.1:" + open("trackd.port").read()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    run = Run(start_server(), "gpt2-nano") if rank == 0 else None
    torch.manual_seed(1)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    net = torch.nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    torch.manual_seed(100 + rank)
    for step in range(2000):
        x = torch.randint(0, 512, (8, 64))
        loss = net(input_ids=x, labels=x).loss
        opt.zero_grad()
        loss.backward()
        gn = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if run:
            run.log(step, loss=loss.item(), grad_norm=gn.item())
    if run:
        run.flush()
    dist.barrier()


if __name__ == "__main__":
    main()
