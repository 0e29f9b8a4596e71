"""Log-probabilities of the reference model: computed once by the main rank, shared through the disk."""
import os
import time

import torch
import torch.distributed as dist

from policy import answer_logp


class Reference:
    def __init__(self, cfg, pairs):
        self.cfg, self.pairs = cfg, pairs
        self.table = None
        self.folder = os.path.join(cfg.out, "ref_cache")
        os.makedirs(self.folder, exist_ok=True)

    def _path(self, generation):
        key = hash((self.cfg.key, generation)) & 0xFFFFFFFF
        return os.path.join(self.folder, f"logps-{key:08x}.pt")

    @torch.no_grad()
    def compute(self, model):
        model.eval()
        out = []
        for ids in (self.pairs.chosen, self.pairs.rejected):
            out.append(torch.cat([answer_logp(model, part, self.pairs.prompt) for part in ids.split(32)]))
        model.train()
        return torch.stack(out)

    def start(self, model):
        self.table = self.compute(model) if dist.get_rank() == 0 else torch.empty(2, len(self.pairs))
        dist.broadcast(self.table, src=0)

    def refresh(self, model, generation):
        path = self._path(generation)
        if dist.get_rank() == 0:
            if not os.path.exists(path):
                torch.save(self.compute(model), path + ".tmp")
                os.rename(path + ".tmp", path)
        else:
            while not os.path.exists(path):
                time.sleep(1.0)
        self.table = torch.load(path, weights_only=True)
