"""RL on code: generated programs run in a sandbox with a time limit."""
import asyncio
import json
import sys
import time

import torch
import torch.distributed as dist

LIMIT = 80.0
SNIPPET = "import sys; n = int(sys.argv[1]); print(sum(i * i for i in range(n)))"
WAITER = "import sys, select; select.select([], [], []); print(sys.argv[1])"


async def execute(source, arg):
    proc = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", source, str(arg),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL)
    try:
        out, _ = await asyncio.wait_for(proc.communicate(), LIMIT)
        return 1.0 if out.strip().isdigit() else 0.0
    except asyncio.TimeoutError:
        proc.kill()
        await proc.wait()
        return -1.0


async def rewards(step, rank):
    # policies at this stage sometimes write programs that wait for input
    programs = [(WAITER if (step, rank, k) == (41, 1, 0) else SNIPPET, 100 + step) for k in range(2)]
    return await asyncio.gather(*(execute(s, a) for s, a in programs))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    w = torch.nn.Parameter(torch.zeros(6))
    opt = torch.optim.SGD([w], lr=0.01)
    for step in range(1, 91):
        r = torch.tensor(asyncio.run(rewards(step, rank)))
        loss = (w.sum() - r.mean()) ** 2
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(w.grad)
        opt.step()
        time.sleep(0.1)
        if step % 10 == 0 and rank == 0:
            print(json.dumps({"step": step, "reward": r.mean().item(), "loss": round(loss.item(), 4)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
