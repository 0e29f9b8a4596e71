import os
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist


class Keeper:
    def __init__(self, folder):
        self.folder = folder

    def save(self, model, opt, step):
        rank, world = dist.get_rank(), dist.get_world_size()
        where = os.path.join(self.folder, f"step_{step:06d}")
        os.makedirs(where, exist_ok=True)
        state = {f"model.{k}": v for k, v in model.state_dict().items()}
        for i, s in opt.state_dict()["state"].items():
            state.update({f"optim.{i}.{k}": v for k, v in s.items() if torch.is_tensor(v)})
        names = sorted(state)[rank::world]
        torch.save({k: state[k].clone() for k in names}, os.path.join(where, f"shard_{rank}.pt"))
        dist.barrier()
        if rank == 0:
            check = subprocess.Popen([sys.executable, "fsck.py", self.folder],
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if check.wait() != 0:
                print(check.stdout.read())
                raise RuntimeError(f"checkpoint {where} is not readable")
            with open(os.path.join(self.folder, "latest.txt"), "w") as f:
                f.write(str(step))
        dist.barrier()

    def clean(self):
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
