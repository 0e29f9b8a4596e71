"""Packs a folder slowly (the target counts requests): pack.py FOLDER FILE"""
import os
import sys
import tarfile
import time


class Slow:
    def __init__(self, path):
        self.f = open(path, "wb")

    def write(self, data):
        for i in range(0, len(data), 8192):
            self.f.write(data[i : i + 8192])
            time.sleep(0.12)
        return len(data)


with tarfile.open(fileobj=Slow(sys.argv[2]), mode="w|", bufsize=8192 * 4) as tar:
    for name in sorted(os.listdir(sys.argv[1])):
        tar.add(f"{sys.argv[1]}/{name}")
