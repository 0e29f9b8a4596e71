import argparse
import json
import os
import subprocess
import sys

p = argparse.ArgumentParser()
p.add_argument("--config", default="config.json")
args = p.parse_args()
cfg = json.load(open(args.config))
procs = []
for r in range(cfg["workers"]):
    env = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(cfg["workers"]),
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(cfg["port"]))
    procs.append(subprocess.Popen([sys.executable, "-m", "engine", args.config], env=env))
codes = [q.wait() for q in procs]
sys.exit(max(abs(c) for c in codes))
