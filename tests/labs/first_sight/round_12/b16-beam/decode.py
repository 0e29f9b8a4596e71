import time

import torch


class Judge:
    """An outside scorer which answers at its own speed."""

    def __init__(self, per_item):
        self.per_item = per_item

    def score(self, hyp, ref):
        time.sleep(self.per_item)
        same = sum(a == b for a, b in zip(hyp, ref))
        return same / max(len(ref), 1)


@torch.no_grad()
def beam(model, src, length, width=6):
    beams = [(0.0, [1])]
    for _ in range(length):
        ext = []
        for score, ids in beams:
            logp = model(src, torch.tensor([ids]))[0, -1].log_softmax(-1)
            top = logp.topk(width)
            ext += [(score + v, ids + [i]) for v, i in zip(top.values.tolist(), top.indices.tolist())]
        beams = sorted(ext, reverse=True)[:width]
    return beams[0][1][1:]
