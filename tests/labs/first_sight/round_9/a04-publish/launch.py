"""Starts the ranks that config.json asks for and prefixes what they print."""
import json
import os
import signal
import subprocess
import sys
import threading


def pump(rank, stream):
    for line in stream:
        sys.stdout.write(f"[r{rank}] {line}")
        sys.stdout.flush()


def main():
    cfg = json.load(open("config.json"))
    procs, pumps = [], []

    def stop(*_):
        for p in procs:
            p.terminate()
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    for rank in range(cfg["num_processes"]):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(cfg["num_processes"]),
                   MASTER_ADDR=cfg["main_process_ip"], MASTER_PORT=str(cfg["main_process_port"]), OMP_NUM_THREADS="1",
                   PYTHONUNBUFFERED="1")
        p = subprocess.Popen([sys.executable, cfg["script"], *sys.argv[1:]], env=env, text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        t = threading.Thread(target=pump, args=(rank, p.stdout), daemon=True)
        t.start()
        procs.append(p)
        pumps.append(t)
    codes = [p.wait() for p in procs]
    for t in pumps:
        t.join(2)
    sys.exit(max(abs(c) for c in codes))


if __name__ == "__main__":
    main()
