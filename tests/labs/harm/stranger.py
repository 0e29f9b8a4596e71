"""What whoever gets a rank's pid does: no rank, no word of the job, no handler. A stack of it has the function's
name, which nothing that the ranks read or were started with contains.

python3 -S stranger.py SECONDS FILE: waits that long, then writes FILE.
"""

import sys
import time


def a_stranger_waits(until: float) -> None:
    while time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    a_stranger_waits(time.monotonic() + float(sys.argv[1]))
    with open(sys.argv[2], "w") as file:
        file.write("lived")
