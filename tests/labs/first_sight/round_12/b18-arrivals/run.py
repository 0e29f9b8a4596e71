"""Online learning: a recorder closes a window of events every so often, two learners take it up."""
import argparse
import multiprocessing as mp
import shutil
import tempfile

import learner
import recorder

if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--windows", type=int, default=6)
    ap.add_argument("--window-seconds", type=float, default=20)
    args = ap.parse_args()
    spool = tempfile.mkdtemp(prefix="spool-")
    ctx = mp.get_context("spawn")
    procs = [ctx.Process(target=recorder.main, args=(spool, args.windows, args.window_seconds))]
    procs += [ctx.Process(target=learner.main, args=(r, 2, spool, args.windows)) for r in range(2)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
    shutil.rmtree(spool)
    raise SystemExit(max(abs(p.exitcode) for p in procs))
