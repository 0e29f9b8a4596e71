import os
import subprocess
import sys

world = 2
if os.path.exists(".rdv"):
    os.unlink(".rdv")
children = []
for rank in range(world):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), OMP_NUM_THREADS="1")
    children.append(subprocess.Popen([sys.executable, "train.py"], env=env))
sys.exit(1 if any(c.wait() for c in children) else 0)
