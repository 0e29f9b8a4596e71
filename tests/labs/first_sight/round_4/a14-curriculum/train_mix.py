import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from mix import DOMAINS, CurriculumMix

BATCH, PER_STAGE = 8, 30


class Causal(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(512, d)
        self.layer = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, 512)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.out(self.layer(self.tok(ids), src_mask=mask))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Causal())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    domain = list(DOMAINS)[rank % len(DOMAINS)]
    loader = DataLoader(CurriculumMix(domain, rank, PER_STAGE, BATCH), batch_size=BATCH, num_workers=1)
    total = PER_STAGE * len(CurriculumMix.STAGES)
    bar = tqdm(total=total, desc="pretrain", disable=bool(int(os.environ["LOCAL_RANK"])))
    for ids in loader:
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        time.sleep(0.15)
        bar.update()
        bar.set_postfix(loss=f"{loss.item():.3f}", len=ids.shape[1])
    bar.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
