"""A script with arguments of its own."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, default=1e-4)
parser.parse_args()
