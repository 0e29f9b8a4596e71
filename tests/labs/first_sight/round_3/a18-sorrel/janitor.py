"""Reads events from stdin; on 'rotate' merges the parts of the cache into one file."""
import glob
import os
import subprocess
import sys

from filelock import FileLock

lock = FileLock("cache/lock")
for line in iter(sys.stdin.readline, ""):
    word, _, number = line.strip().partition(" ")
    if word == "rotate":
        with lock:
            parts = sorted(glob.glob("cache/*.part"))
            with open(f"cache/merged-{number}", "wb") as out:
                subprocess.run(["cat", *parts], stdout=out, check=True)
            for p in parts:
                os.remove(p)
