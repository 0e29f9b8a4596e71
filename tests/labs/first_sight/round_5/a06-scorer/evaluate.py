"""Score generated sequences against references in two helper processes."""
import multiprocessing as mp


def edit_distance(a, b):
    prev = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        cur = [i]
        for j, y in enumerate(b, 1):
            cur.append(min(prev[j] + 1, cur[-1] + 1, prev[j - 1] + (x != y)))
        prev = cur
    return prev[-1]


def score_part(part, out):
    rows = []
    for k, hyp, ref in part:
        d = edit_distance(hyp, ref)
        rows.append({"id": k, "hyp": hyp, "ref": ref, "distance": d, "rate": d / max(1, len(ref))})
    out.put(rows)


def score(pairs, workers=2):
    ctx = mp.get_context("fork")
    out = ctx.Queue()
    items = [(k, h, r) for k, (h, r) in enumerate(pairs)]
    procs = [ctx.Process(target=score_part, args=(items[w::workers], out)) for w in range(workers)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
    rows = []
    for _ in procs:
        rows.extend(out.get())
    rows.sort(key=lambda r: r["id"])
    return sum(r["rate"] for r in rows) / len(rows), rows
