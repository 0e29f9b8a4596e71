"""Streams the token shards in a folder to stdout, one line per sample, in order; writers add shards as *.part and rename."""
import os
import random
import sys
import time


def make(folder):
    os.makedirs(folder, exist_ok=True)
    rnd = random.Random(5)
    for n in range(6):
        name = f"{folder}/{n:03d}.tok" + (".part" if n == 3 else "")
        with open(name, "w") as f:
            for _ in range(220):
                f.write(" ".join(str(rnd.randrange(128)) for _ in range(32)) + "\n")


def main():
    folder = sys.argv[1]
    make(folder)
    total = 6
    for n in range(total):
        path = f"{folder}/{n:03d}.tok"
        while not os.path.exists(path):
            time.sleep(0.5)
        with open(path) as f:
            for line in f:
                sys.stdout.write(line)
        sys.stdout.flush()


main()
