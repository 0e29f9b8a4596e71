"""start.py [N]: N ranks on this machine, each with its log."""
import os
import socket
import subprocess
import sys

n = int(sys.argv[1]) if len(sys.argv) > 1 else 2
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
procs = []
for r in range(n):
    out = None if r == 0 else open(f"log.{r}", "w")
    procs.append(subprocess.Popen([sys.executable, "train.py", str(r), str(n), str(port)],
                                  stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ, OMP_NUM_THREADS="1")))
bad = [p.args[2] for p in procs if p.wait() != 0]
sys.exit(f"ranks {bad} failed" if bad else 0)
