"""launch.py N SCRIPT [ARGS]: N workers on this host, as our cluster's starter does it."""
import os
import signal
import subprocess
import sys

n = int(sys.argv[1])
workers = []
for rank in range(n):
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n),
               MASTER_ADDR="127.0.0.1", MASTER_PORT="31211")
    env.setdefault("OMP_NUM_THREADS", "1")
    workers.append(subprocess.Popen([sys.executable, "-u", *sys.argv[2:]], env=env))


def stop(sig, _):
    for w in workers:
        w.send_signal(sig)


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
codes = [w.wait() for w in workers]
sys.exit(max(codes, key=abs))
