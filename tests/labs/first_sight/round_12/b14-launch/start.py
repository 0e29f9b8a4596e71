"""start.py -n N -p PORT -- SCRIPT ARGS: one process for each rank; only the first one's output is shown."""
import argparse
import os
import subprocess
import sys

ap = argparse.ArgumentParser()
ap.add_argument("-n", type=int, default=2)
ap.add_argument("-p", type=int, default=29500)
ap.add_argument("rest", nargs=argparse.REMAINDER)
args = ap.parse_args()
command = [sys.executable, *[a for a in args.rest if a != "--"]]

procs = []
for rank in range(args.n):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(args.n), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1",
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.p))
    shown = None if rank == 0 else subprocess.PIPE
    procs.append(subprocess.Popen(command, env=env, stdout=shown, stderr=subprocess.STDOUT if shown else None))

code = 0
for rank, p in enumerate(procs):
    if p.wait() != 0:
        code = p.returncode
        if p.stdout:
            sys.stderr.write(f"rank {rank} ended with {code}:\n" + p.stdout.read().decode(errors="replace"))
sys.exit(code)
