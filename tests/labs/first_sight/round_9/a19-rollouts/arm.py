"""The robot arm's simulator; it runs in real time and knows only this pipe."""
import random
import sys
import time

rng = random.Random(int(sys.argv[1]))
for line in sys.stdin:
    seconds = float(line)
    total, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        total += rng.random()
        time.sleep(0.05)
    print(f"{total:.3f}", flush=True)
