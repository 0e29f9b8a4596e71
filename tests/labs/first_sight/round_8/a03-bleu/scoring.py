import collections
import math


def ngrams(seq, n):
    return collections.Counter(tuple(seq[i:i + n]) for i in range(len(seq) - n + 1))


def bleu(hyp, ref):
    logs = 0.0
    for n in range(1, 5):
        h, r = ngrams(hyp, n), ngrams(ref, n)
        hit = sum(min(c, r[g]) for g, c in h.items())
        logs += math.log((hit + 1) / (sum(h.values()) + 1)) / 4
    return math.exp(min(0.0, 1 - len(ref) / max(1, len(hyp))) + logs)


def minimum_bayes_risk(candidates):
    """The candidate with the best mean BLEU against all others, and that mean."""
    best, at = -1.0, 0
    for i, c in enumerate(candidates):
        s = sum(bleu(c, o) for j, o in enumerate(candidates) if j != i) / (len(candidates) - 1)
        if s > best:
            best, at = s, i
    return at, best
