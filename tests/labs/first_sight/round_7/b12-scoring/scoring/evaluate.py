"""python -m scoring.evaluate CHECKPOINT: accuracy on the held-out texts as JSON."""
import json
import sys

import torch
import torch.distributed as dist

from .common import Classifier, setup, texts


def main():
    rank, world = setup()
    model = Classifier()
    model.load_state_dict(torch.load(sys.argv[1], weights_only=True))
    model.eval()
    x, y = texts(999, 4000)
    x, y = x[rank::world], y[rank::world]
    with torch.no_grad():
        hits = torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float)
    if world > 1:
        dist.all_reduce(hits)
    if rank == 0:
        print(json.dumps({"accuracy": round((hits[0] / hits[1]).item(), 4), "n": int(hits[1])}))


if __name__ == "__main__":
    main()
