"""Starts one process per rank, waits for all, ends the others when one fails."""
import os
import subprocess
import sys
import time

args = sys.argv[1:]
n, port = int(args[args.index("-n") + 1]), args[args.index("--port") + 1]
cmd = args[args.index("--") + 1:]
procs = []
for r in range(n):
    env = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    procs.append(subprocess.Popen([sys.executable, "-u", *cmd], env=env))
while True:
    codes = [p.poll() for p in procs]
    bad = [c for c in codes if c]
    if bad:
        for p in procs:
            if p.poll() is None:
                p.terminate()
        sys.exit(bad[0] if bad[0] > 0 else 1)
    if all(c == 0 for c in codes):
        sys.exit(0)
    time.sleep(0.5)
