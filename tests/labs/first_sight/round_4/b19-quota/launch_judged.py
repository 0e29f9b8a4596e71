import multiprocessing as mp
import socket

import judge_api
import judged_dpo


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    q = ctx.Queue()
    api = ctx.Process(target=judge_api.run, args=(q,), name="judge", daemon=True)
    api.start()
    judge_port, rendezvous = q.get(), free_port()
    ranks = [ctx.Process(target=judged_dpo.run, args=(r, 2, rendezvous, judge_port, 130)) for r in range(2)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    raise SystemExit(0 if all(p.exitcode == 0 for p in ranks) else 1)
