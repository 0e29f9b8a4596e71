"""bwcopy.py KBYTES_PER_S SOURCE TARGET: copy a tree without taking the whole line to the archive."""
import os
import sys
import time


def copy(src, dst, rate):
    os.makedirs(os.path.dirname(dst), exist_ok=True)
    with open(src, "rb") as a, open(dst, "wb") as b:
        while block := a.read(32768):
            b.write(block)
            b.flush()
            time.sleep(len(block) / 1024 / rate)


rate, source, target = float(sys.argv[1]), sys.argv[2], sys.argv[3]
for folder, _, names in os.walk(source):
    for name in sorted(names):
        path = os.path.join(folder, name)
        copy(path, os.path.join(target, os.path.relpath(path, source)), rate)
