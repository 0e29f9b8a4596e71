#!/usr/bin/env python3
"""Small launcher: launch.py -n RANKS [-p PORT] SCRIPT ARGS...

Shows rank 0's output as it comes; that of the other ranks goes to logs/rank_N.txt.
"""
import argparse
import os
import signal
import subprocess
import sys


def start(rank, a, extra):
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(a.n),
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port), OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    return subprocess.Popen([sys.executable, a.script, *extra], env=env, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-n", type=int, default=2)
    ap.add_argument("-p", "--port", type=int, default=31317)
    ap.add_argument("script")
    a, extra = ap.parse_known_args()
    procs = [start(r, a, extra) for r in range(a.n)]

    def stop(signum, frame):
        for p in procs:
            p.terminate()
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    for line in procs[0].stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
    procs[0].wait()
    os.makedirs("logs", exist_ok=True)
    for r, p in enumerate(procs[1:], 1):
        out, _ = p.communicate()
        with open(f"logs/rank_{r}.txt", "w") as fh:
            fh.write(out)
    sys.exit(max(p.returncode for p in procs))


if __name__ == "__main__":
    main()
