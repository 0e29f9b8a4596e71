import os
import random
import time


def main(spool, windows, seconds):
    rng = random.Random(0)
    for k in range(windows):
        time.sleep(seconds)
        name = os.path.join(spool, f"window{k}.csv")
        with open(name + ".open", "w") as f:
            for _ in range(512):
                a, b = rng.gauss(0, 1), rng.gauss(0, 1)
                f.write(f"{a:.4f},{b:.4f},{int(a * b > 0.1 * k)}\n")
        os.rename(name + ".open", name)
