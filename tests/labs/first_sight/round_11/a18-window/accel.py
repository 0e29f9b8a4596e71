"""accel.py [--procs N] [--port P] script args...: starts N copies of a script with the usual variables."""
import argparse
import os
import subprocess
import sys
import time

p = argparse.ArgumentParser()
p.add_argument("--procs", type=int, default=2)
p.add_argument("--port", type=int, default=31520)
p.add_argument("script", nargs=argparse.REMAINDER)
a = p.parse_args()
children = []
for r in range(a.procs):
    env = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(a.procs), MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(a.port), OMP_NUM_THREADS="1")
    children.append(subprocess.Popen([sys.executable] + a.script, env=env))
while any(c.poll() is None for c in children):
    if any(c.poll() for c in children):
        for c in children:
            if c.poll() is None:
                c.terminate()
    time.sleep(0.5)
sys.exit(1 if any(c.returncode for c in children) else 0)
