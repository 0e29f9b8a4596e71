"""Takes requests from a spool directory, oldest first, and leaves the answers there."""
import json
import os
import random
import sys
import time

spool = sys.argv[1]
while os.path.isdir(spool):
    todo = sorted(n for n in os.listdir(spool) if n.endswith(".req"))
    if not todo:
        time.sleep(0.5)
        continue
    name = os.path.join(spool, todo[0])
    with open(name) as f:
        req = json.load(f)
    time.sleep(req["n"] * random.uniform(2.6, 3.4))
    with open(name[:-4] + ".part", "w") as f:
        json.dump([[random.randrange(400) for _ in range(32)] for _ in range(req["n"])], f)
    os.rename(name[:-4] + ".part", name[:-4] + ".ans")
    os.remove(name)
