import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from lexicon import Lexicon
from sentences import Feed, Sentences, words_of

ap = argparse.ArgumentParser()
ap.add_argument("--langs", default="it,hu")
ap.add_argument("--epochs", type=int, default=6)
args = ap.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
lang = args.langs.split(",")[rank]
torch.manual_seed(rank)
path = os.path.join(tempfile.mkdtemp(prefix="lexicon-"), lang + ".txt")
with open(path, "w") as f:
    f.write("".join(w + "\n" for w in words_of(lang, 0)))
lexicon = Lexicon(path)
feed = Feed(Sentences(lang, lexicon), batch_size=16)

model = DDP(nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
step = 0
for epoch in range(args.epochs):
    for x, y in feed.start(epoch):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 25 == 0 and rank == 0:
            print(f"step={step} epoch={epoch} loss={loss.item():.4f}", flush=True)
    print(f"{lang}: epoch {epoch} done, {len(lexicon)} words", flush=True)
dist.destroy_process_group()
