"""`python -m diag_job.faults`: list the faults, or let a waiting one go."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import KINDS, release


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m diag_job.faults", description=__doc__)
    parser.add_argument("--release", type=Path, metavar="DIR", help="the run's DIAG_FAULT_DIR")
    folder = parser.parse_args().release
    if folder is not None:
        for path in release(folder):
            print(path)
        return 0
    for kind in KINDS:
        keys = ",".join(f"{key}={value:g}" for key, value in kind.keys.items())
        print(f"{kind.name:24} {kind.summary}\n{'':24} {keys}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
