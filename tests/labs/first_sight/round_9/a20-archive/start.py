"""Starts both ranks; the second one's disk is fresh and is filled from the archive first."""
import os
import shutil
import subprocess
import sys
import tempfile

root = tempfile.mkdtemp(prefix="nodes-")
subprocess.run([sys.executable, "make_archive.py", root], check=True)
procs = []
for rank in range(2):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="31121",
               OMP_NUM_THREADS="1", NODE_DIR=os.path.join(root, f"node{rank}"),
               ARCHIVE=os.path.join(root, "rows.tar"))
    procs.append(subprocess.Popen([sys.executable, "-u", "main.py"], env=env))
code = max(abs(p.wait()) for p in procs)
shutil.rmtree(root)
sys.exit(code)
