def lcs(a, b):
    prev = [0] * (len(b) + 1)
    for x in a:
        cur = [0]
        for j, y in enumerate(b):
            cur.append(prev[j] + 1 if x == y else max(prev[j + 1], cur[j]))
        prev = cur
    return prev[-1]


def rouge_l(hyp, ref):
    n = lcs(hyp, ref)
    if not n:
        return 0.0
    p, r = n / len(hyp), n / len(ref)
    return 2 * p * r / (p + r)
