"""The folder that, on PYTHONPATH, arms DIAG_FAULT and the CPU device layer (DIAG_JOB_DEVICE=cpu) in any
Megatron job.

`python -m diag_job.hooks` prints it, for scripts: PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$(python -m
diag_job.hooks). With --fault it first checks that the fault exists and that the job and this machine can have
it; exit code 2 and why, where not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import faults

FOLDER = Path(__file__).parent / "cpu"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m diag_job.hooks", description=__doc__)
    parser.add_argument(
        "--fault", metavar="NAME[:key=value,...]", help="python -m diag_job.faults lists them"
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of the job")
    options = parser.parse_args(argv)
    if options.fault:
        try:
            faults.check(faults.parse(options.fault), options.ranks)
        except faults.FaultError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    print(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
