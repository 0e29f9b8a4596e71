import math
import multiprocessing
import random


def judge(number, part, queue):
    rng = random.Random(number)
    scores = []
    for mean in part:
        draws = [rng.gauss(mean, 1) for _ in range(40)]
        centre = sum(draws) / len(draws)
        spread = math.sqrt(sum((d - centre) ** 2 for d in draws) / len(draws))
        scores.append({"mean": round(centre, 6), "spread": round(spread, 6), "id": f"{number}-{len(scores)}"})
    queue.put((number, scores))


def report(outputs, helpers=2):
    """Bootstrap of the outputs, in two processes."""
    ctx = multiprocessing.get_context("fork")
    queue = ctx.Queue()
    size = -(-len(outputs) // helpers)
    children = [ctx.Process(target=judge, args=(i, outputs[i * size:(i + 1) * size], queue))
                for i in range(helpers)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    parts = dict(queue.get() for _ in children)
    rows = [row for i in sorted(parts) for row in parts[i]]
    return sum(r["mean"] for r in rows) / len(rows), rows
