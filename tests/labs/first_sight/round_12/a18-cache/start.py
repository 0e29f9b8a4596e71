import os
import shutil
import subprocess
import sys
import tempfile

WORLD = 4


def main():
    tmp = tempfile.mkdtemp(prefix="packed-")
    procs = []
    try:
        for rank in range(WORLD):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), OMP_NUM_THREADS="1",
                       MASTER_ADDR="127.0.0.1", MASTER_PORT="31718", PACKED=os.path.join(tmp, "train.bin"))
            procs.append(subprocess.Popen([sys.executable, "train.py"], env=env))
        return max(abs(p.wait()) for p in procs)
    finally:
        for p in procs:
            p.terminate()
        shutil.rmtree(tmp, ignore_errors=True)


sys.exit(main())
