import os
import random
import sys

store = sys.argv[1]
os.makedirs(store)
for k, lines in enumerate((4000, 30000, 4000)):
    rng = random.Random(k)
    with open(os.path.join(store, f"shard{k}.txt"), "w") as f:
        for _ in range(lines):
            f.write(" ".join(f"{rng.gauss(0, 1):.4f}" for _ in range(16)) + "\n")
