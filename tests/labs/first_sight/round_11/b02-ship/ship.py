"""Reads the log on stdin, passes it on, and packs it in segments of so many lines."""
import argparse
import subprocess
import sys
from pathlib import Path

ap = argparse.ArgumentParser()
ap.add_argument("dir", type=Path)
ap.add_argument("--lines", type=int, default=1000)
args = ap.parse_args()
for old in args.dir.glob("segment_*"):
    old.unlink()


def pack(path):
    tool = subprocess.Popen([sys.executable, "pack.py", str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if tool.wait() != 0:
        sys.stderr.write(f"could not pack {path}\n")


number, count = 0, 0
out = None
for line in sys.stdin:
    if out is None:
        path = args.dir / f"segment_{number:04d}.log"
        out = path.open("w")
    out.write(line)
    sys.stdout.write(line)
    count += 1
    if count == args.lines:
        out.close()
        pack(path)
        number, count, out = number + 1, 0, None
