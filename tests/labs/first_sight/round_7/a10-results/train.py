import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from store import Results

WORLD, CLASSES, BATCH = 3, 5, 40
EPOCHS, STEPS, GROWTH = 12, 100, 1.1


def make(n, gen, centres):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    return centres[y] + 2.5 * torch.randn(n, centres.shape[1], generator=gen), y


def reduce_grads(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(WORLD)


def evaluate(net, x, y):
    with torch.no_grad():
        guess = net(x).argmax(1)
    return guess, torch.tensor([(guess == y).sum().item(), len(y)], dtype=torch.float64)


def job(rank, folder):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = "29710"
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    path = os.path.join(folder, "results.db")
    if rank == 0:
        results = Results(path, create=True)
    dist.barrier()
    if rank == 1:
        results = Results(path)
    centres = torch.randn(CLASSES, 20, generator=torch.Generator().manual_seed(1))
    gen = torch.Generator().manual_seed(20 + rank)
    test = make(200, gen, centres)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, CLASSES))
    opt = torch.optim.SGD(net.parameters(), 0.05)
    for epoch in range(EPOCHS):
        steps = int(STEPS * GROWTH ** epoch)
        for step in range(1, steps + 1):
            x, y = make(BATCH, gen, centres)
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            reduce_grads(net)
            opt.step()
            if rank == 0:
                results.step(epoch, step, loss.item(), 0.05)
        guess, score = evaluate(net, *test)
        if rank == 1:
            wrong = (guess != test[1]).nonzero().flatten().tolist()
            results.answers(epoch, [(i, guess[i].item(), test[1][i].item()) for i in wrong])
        dist.all_reduce(score)
        if rank == 0:
            print(f"epoch {epoch}: {steps} steps, accuracy {score[0] / score[1]:.3f}", flush=True)
    if rank < 2:
        results.close()
    dist.destroy_process_group()


def main():
    folder = tempfile.mkdtemp(prefix="results-")
    print(f"results in {folder}", flush=True)
    mp.spawn(job, args=(folder,), nprocs=WORLD)


if __name__ == "__main__":
    main()
