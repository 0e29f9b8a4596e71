import argparse
import multiprocessing as mp

import worker

WORLD = 2


def run_fold(fold, port):
    ctx = mp.get_context("spawn")
    results = ctx.Queue()
    procs = [ctx.Process(target=worker.train, args=(r, WORLD, port, fold, results), name=f"rank{r}")
             for r in range(WORLD)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
        if p.exitcode:
            raise SystemExit(f"{p.name} ended with {p.exitcode}")
    return sorted((results.get() for _ in procs), key=lambda r: r["rank"])


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--port", type=int, default=29500)
    ap.add_argument("--folds", type=int, default=5)
    args = ap.parse_args()
    scores = []
    for fold in range(args.folds):
        first, *_ = run_fold(fold, args.port)
        scores.append(first["score"])
        with open(f"/tmp/crossval-{args.port}-fold{fold}.pt", "wb") as f:
            f.write(first["weights"])
    print(f"mean of {len(scores)} folds: {sum(scores) / len(scores):.4f}", flush=True)
