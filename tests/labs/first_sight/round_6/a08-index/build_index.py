"""Build an index before the training starts, so that the ranks find it."""
import argparse

from corpus import load_index

ap = argparse.ArgumentParser()
ap.add_argument("names", nargs="+")
args = ap.parse_args()
for name in args.names:
    idx = load_index(name)
    print(f"{name}: {sum(map(len, idx.values()))} documents", flush=True)
