"""`python -m tests.labs.harm.once FAULT SEED FOLDER SECONDS [DIAG ...]`: one trial; its outcome as a line of JSON
on stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.labs.harm.faults import FAULTS
from tests.labs.harm.trial import run_trial

if __name__ == "__main__":
    NAME, SEED, FOLDER, SECONDS, *DIAG = sys.argv[1:]
    print(
        json.dumps(asdict(run_trial(FAULTS[NAME], int(SEED), Path(FOLDER), diag=DIAG, most=float(SECONDS))))
    )
