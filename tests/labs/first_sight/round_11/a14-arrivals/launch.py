"""Starts the workers of one job; each first stages its part of the data into its own scratch."""
import os
import subprocess
import sys

HOSTS = [("n01", 4096), ("n02", 4096), ("n03", 160)]   # name, link in KB/s


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    workers = []
    for rank, (name, link) in enumerate(HOSTS):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(HOSTS)), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT="31516", NODE=name, LINK_KBPS=str(link))
        workers.append(subprocess.Popen([sys.executable, "-u", os.path.join(here, "worker.py")], env=env, cwd=here))
    status = [w.wait() for w in workers]
    print("exit codes", dict(zip([h for h, _ in HOSTS], status)))
    return 0 if not any(status) else 1


sys.exit(main())
