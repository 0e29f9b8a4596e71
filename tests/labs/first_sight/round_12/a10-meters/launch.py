import os
import signal
import subprocess
import sys

WORLD, PORT, METER_PORT = 4, 31710, 31760


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    base = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT), WORLD_SIZE=str(WORLD),
                METER_PORT=str(METER_PORT), OMP_NUM_THREADS="1")
    helper = subprocess.Popen([sys.executable, "meterd.py", str(METER_PORT), str(WORLD)])
    ranks = [subprocess.Popen([sys.executable, "worker.py"], env=dict(base, RANK=str(r), LOCAL_RANK=str(r)))
             for r in range(WORLD)]
    try:
        codes = [p.wait() for p in ranks]
        return max(abs(c) for c in codes)
    finally:
        for p in ranks + [helper]:
            p.terminate()


sys.exit(main())
