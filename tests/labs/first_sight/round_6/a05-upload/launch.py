import os
import subprocess
import sys

N = 2


def main():
    if os.path.exists("meet"):
        os.remove("meet")
    ranks = []
    for r in range(N):
        env = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(N))
        ranks.append(subprocess.Popen([sys.executable, "-u", "train.py"], env=env))
    codes = [p.wait() for p in ranks]
    print("exit codes", codes)
    sys.exit(max(abs(c) for c in codes))


main()
