import argparse
import json

import torch

from model import Ranker, pairs

ap = argparse.ArgumentParser()
ap.add_argument("weights")
ap.add_argument("--queries", type=int, required=True)
ap.add_argument("--summary", required=True)
a = ap.parse_args()
torch.set_num_threads(1)
net = Ranker()
net.load_state_dict(torch.load(a.weights))
g = torch.Generator().manual_seed(123)
right = 0
with torch.no_grad():
    for i in range(a.queries):
        q, d, y = pairs(16, g)
        s = net(q, d)
        hit = int(((s > 0) == (y > 0)).sum())
        right += hit
        print(f"query {i:05d} hits {hit}/16 best {int(s.argmax())} score {s.max():.4f} label {int(y[s.argmax()])}")
json.dump({"accuracy": right / (16 * a.queries)}, open(a.summary, "w"))
print(f"accuracy {right / (16 * a.queries):.4f}")
