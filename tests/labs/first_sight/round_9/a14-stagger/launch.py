"""Starts one worker after another: all at once they overload the shared file system with imports."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time


def start(cfg, rank, flags):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(len(cfg["workers"])), LOCAL_RANK=str(rank),
               MASTER_ADDR=cfg["address"], MASTER_PORT=str(cfg["port"]), UP_FLAG=os.path.join(flags, f"{rank}.up"))
    env.update(cfg["workers"][rank].get("env", {}))
    print(f"launch: worker {rank} of {len(cfg['workers'])}", flush=True)
    return subprocess.Popen([sys.executable, cfg["program"]], env=env)


def main():
    cfg = json.load(open("workers.json"))
    flags = tempfile.mkdtemp(prefix="up-")
    procs = []

    def stop(*_):
        for p in procs:
            p.terminate()
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    for rank in range(len(cfg["workers"])):
        procs.append(start(cfg, rank, flags))
        flag = os.path.join(flags, f"{rank}.up")
        while not os.path.exists(flag) and procs[-1].poll() is None:
            time.sleep(0.2)
    for p in procs:
        p.wait()
    sys.exit(max(abs(p.returncode) for p in procs))


if __name__ == "__main__":
    main()
