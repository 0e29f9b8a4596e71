import argparse
import os
import time

ap = argparse.ArgumentParser()
ap.add_argument("--source")
ap.add_argument("--target")
ap.add_argument("--rate", type=float)
a = ap.parse_args()
for name in sorted(os.listdir(a.source)):
    with open(os.path.join(a.source, name), "rb") as src, open(os.path.join(a.target, name), "wb") as dst:
        while piece := src.read(65536):
            dst.write(piece)
            time.sleep(len(piece) / a.rate)
