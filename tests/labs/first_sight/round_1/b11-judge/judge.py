"""Scores generations against references with a chrF-like measure; reads JSON lines on stdin, writes one JSON object."""
import json, sys
from collections import Counter


def grams(s, n):
    return Counter(s[i:i + n] for i in range(len(s) - n + 1))


def chrf(h, r):
    best = 0.0
    for n in range(1, 7):
        a, b = grams(h, n), grams(r, n)
        same = sum((a & b).values())
        p, q = same / max(1, sum(a.values())), same / max(1, sum(b.values()))
        best += 2 * p * q / (p + q) if p + q else 0.0
    return best / 6


rows = [json.loads(l) for l in sys.stdin]
refs = sorted({r["ref"] for r in rows})
total = 0.0
for r in rows:
    total += max(chrf(r["hyp"], ref) for ref in refs)
print(json.dumps({"chrf": total / len(rows)}))
