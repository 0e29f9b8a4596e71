import time

import torch


@torch.no_grad()
def beam(model, src, width=4, steps=24):
    beams = [(0.0, [1])]
    enc = model.encode(src)
    for _ in range(steps):
        cand = []
        for score, toks in beams:
            logp = model.step(enc, torch.tensor([toks])).log_softmax(-1)[0]
            top = logp.topk(width)
            cand += [(score + v.item(), toks + [i.item()]) for v, i in zip(top.values, top.indices)]
        beams = sorted(cand, reverse=True)[:width]
    return beams[0][1]


def overlap(hyp, ref):
    return len(set(hyp) & set(ref)) / max(1, len(set(ref)))


def evaluate(model, pairs, pause):
    total = 0.0
    for src, ref in pairs:
        total += overlap(beam(model, src), ref)
        time.sleep(pause)  # the node is shared with the serving team
    return total / len(pairs)
