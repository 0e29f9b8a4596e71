import os
import random
import sys

out, n = sys.argv[1], int(sys.argv[2])
os.makedirs(out, exist_ok=True)
rng = random.Random(11)
for i in range(n):
    with open(os.path.join(out, f"part-{i:03d}.txt"), "w") as f:
        for _ in range(2000):
            f.write(" ".join(str(rng.randrange(500)) for _ in range(rng.randrange(8, 32))) + "\n")
