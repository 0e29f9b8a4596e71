"""Beam search, one sentence at a time, one hypothesis at a time: slow, but easy to follow."""
import torch

BOS, EOS = 1, 2


@torch.no_grad()
def decode(net, x, beam, longest=24):
    beams = [(0.0, [BOS], net.encode(x[None]))]
    ended = []
    for _ in range(longest):
        grown = []
        for score, ids, h in beams:
            o, h2 = net.dec(net.tgt(torch.tensor([[ids[-1]]])), h)
            logp = net.out(o)[0, 0].log_softmax(-1)
            top = logp.topk(beam)
            grown += [(score + s.item(), ids + [t.item()], h2) for s, t in zip(top.values, top.indices)]
        grown.sort(key=lambda b: -b[0])
        beams = [b for b in grown if b[1][-1] != EOS][:beam]
        ended += [b for b in grown[:beam] if b[1][-1] == EOS]
    return max(ended, key=lambda b: b[0] / len(b[1]))[1] if ended else beams[0][1]


def decode_all(net, xs, ys, beam):
    right = sum(decode(net, x, beam) == y.tolist() for x, y in zip(xs, ys))
    return right / len(xs)
