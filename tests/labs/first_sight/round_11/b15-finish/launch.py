"""launch.py N script args...: N local ranks, ends with the first that fails."""
import os
import subprocess
import sys
import time

n, cmd = int(sys.argv[1]), sys.argv[2:]
base = dict(os.environ, WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT="31615")
procs = [subprocess.Popen([sys.executable, "-u", *cmd], env=dict(base, RANK=str(r), LOCAL_RANK=str(r))) for r in range(n)]
while any(p.poll() is None for p in procs):
    if any(p.poll() for p in procs):
        for p in procs:
            p.terminate()
    time.sleep(0.5)
sys.exit(max(abs(p.returncode) for p in procs))
