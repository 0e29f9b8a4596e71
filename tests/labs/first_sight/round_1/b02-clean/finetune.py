import json, logging, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from prep import clean, encode

SEQ = 96


class Docs(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.rows = [json.loads(l) for l in f]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    x = torch.tensor([encode(clean(r["text"]), SEQ) for r in rows])
    y = torch.tensor([r["label"] for r in rows])
    return x, y


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(256, 96)
        layer = nn.TransformerEncoderLayer(96, 4, 192, batch_first=True, dropout=0.0)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(96, 4)

    def forward(self, x):
        return self.out(self.enc(self.emb(x)).mean(1))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO,
                        format=f"%(asctime)s [{rank}] %(levelname)s %(name)s: %(message)s")
    log = logging.getLogger("finetune")
    data = Docs("docs.jsonl")
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler, collate_fn=collate, num_workers=1)
    model = DistributedDataParallel(Classifier())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    step = 0
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 20 == 0:
                log.info("step=%d epoch=%d loss=%.3f", step, epoch, loss.item())
    dist.destroy_process_group()
