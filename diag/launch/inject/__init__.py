"""The in-rank hook: what `diag run` puts into CMD's environment so that ranks load it, and nothing else.

This folder goes first on PYTHONPATH; `sitecustomize` in it does the work inside each Python process of the
job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Same as diag/launch/inject/_diag_hook.py, where the choice is explained.
STACK_SIGNAL = 50


def environment(run_dir: Path, ptracer_pid: int, env: Mapping[str, str]) -> dict[str, str]:
    """The variables to add to CMD's environment. An existing PYTHONPATH stays, behind ours."""
    paths = [str(Path(__file__).resolve().parent), *filter(None, [env.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "DIAG_RUN_DIR": str(run_dir),
        "DIAG_PTRACER_PID": str(ptracer_pid),
        "DIAG_STACK_SIGNAL": str(STACK_SIGNAL),
    }
