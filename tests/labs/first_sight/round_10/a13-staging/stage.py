"""Copies the shards of a node from the remote store to its local disk, gently."""
import os
import time


def missing(remote, local):
    have = set(os.listdir(local)) if os.path.isdir(local) else set()
    return [n for n in sorted(os.listdir(remote)) if n not in have]


def pull(remote, local, rate):
    os.makedirs(local, exist_ok=True)
    for name in missing(remote, local):
        with open(os.path.join(remote, name), "rb") as src, \
                open(os.path.join(local, "." + name), "wb") as dst:
            while True:
                piece = src.read(64 * 1024)
                if not piece:
                    break
                dst.write(piece)
                time.sleep(len(piece) / rate)
        os.replace(os.path.join(local, "." + name), os.path.join(local, name))
