"""Starts the ranks; when one of them fails, ends the others and starts all again."""
import os
import shutil
import subprocess
import sys
import tempfile
import time


def start(world, attempt, port, folder, program):
    procs = []
    for rank in range(world):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), ATTEMPT=str(attempt),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port + attempt), RUN_FOLDER=folder)
        procs.append(subprocess.Popen([sys.executable, "-u", *program], env=env))
    return procs


def watch(procs):
    while True:
        codes = [p.poll() for p in procs]
        if any(codes):
            for p in procs:
                p.terminate()
            for p in procs:
                p.wait()
            return False
        if None not in codes:
            return True
        time.sleep(0.2)


def main():
    world, program = int(sys.argv[1]), sys.argv[2:]
    folder = tempfile.mkdtemp(prefix="regress-")
    try:
        for attempt in range(4):
            print(f"supervise: attempt {attempt}, {world} ranks", flush=True)
            if watch(start(world, attempt, 29830, folder, program)):
                return 0
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
