"""actor.py FOLDER ROUNDS SECONDS: play for some seconds, write the games, and so on."""
import os
import random
import sys
import time

folder, rounds, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
parent = os.getppid()
rng = random.Random(0)


def game():
    heap, moves = rng.randint(12, 60), []
    while heap > 0:
        time.sleep(0.01)        # the emulator
        take = rng.randint(1, 3)
        moves.append(f"{heap}:{take}")
        heap -= take
    return " ".join(moves)


for n in range(rounds):
    until = time.monotonic() + seconds
    path = os.path.join(folder, f"{n:04d}.txt")
    with open(path + ".tmp", "w") as out:
        while time.monotonic() < until:
            out.write(f"{game()}\n")
            if os.getppid() != parent:
                sys.exit()
    os.replace(path + ".tmp", path)
