import multiprocessing as mp
import time

import numpy as np


def _judge(part, answers, out):
    """Score one part of the answers against all rubrics."""
    rng = np.random.default_rng(part)
    rubric = rng.standard_normal((64, 128)).astype(np.float32)
    rows = []
    for a in answers:
        rows.append((a @ rubric.T).tolist())
        time.sleep(0.01)
    out.put((part, rows))


def score(answers, parts=2):
    ctx = mp.get_context("fork")
    out = ctx.Queue()
    procs = [ctx.Process(target=_judge, args=(k, answers[k::parts], out)) for k in range(parts)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
    return dict(out.get() for _ in procs)
