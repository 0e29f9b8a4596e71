import argparse
import os
import socket
import subprocess
import sys
import time


def parse():
    p = argparse.ArgumentParser(description="start N workers on this machine")
    p.add_argument("-n", type=int, default=3)
    p.add_argument("command", nargs=argparse.REMAINDER)
    return p.parse_args()


def main():
    args = parse()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    workers = []
    for rank in range(args.n):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(args.n),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        workers.append(subprocess.Popen([sys.executable, "-u", *args.command], env=env, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    start = time.time()
    for line in workers[0].stdout:
        print(f"[{time.time() - start:6.1f}] {line}", end="", flush=True)
    failed = 0
    for rank, w in enumerate(workers):
        out = w.communicate()[0] if rank else ""
        if w.returncode:
            failed = failed or w.returncode
            print(f"worker {rank} ended with {w.returncode}; its last lines:")
            print("\n".join((out or "").splitlines()[-20:]))
    return failed


if __name__ == "__main__":
    sys.exit(main())
