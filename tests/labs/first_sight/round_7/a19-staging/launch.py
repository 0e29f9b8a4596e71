"""python launch.py N PROGRAM ARGS: starts N ranks here, ends with the first code other than 0."""
import os
import subprocess
import sys

n = int(sys.argv[1])
procs = []
for rank in range(n):
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n),
               MASTER_ADDR="127.0.0.1", MASTER_PORT="29720", OMP_NUM_THREADS="1")
    procs.append(subprocess.Popen([sys.executable, "-u", *sys.argv[2:]], env=env))
code = 0
for p in procs:
    code = p.wait() or code
    if code:
        for q in procs:
            q.terminate()
sys.exit(code)
