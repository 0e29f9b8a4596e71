"""First on PYTHONPATH of a job under `diag run`: hooks the ranks, then runs the sitecustomize that would have
run.

Python imports only the first sitecustomize it finds, so without handing on we would hide the user's. Runs at
the start of every Python process of the job, in the job's interpreter (3.8 to 3.14): no imports of its own,
no output, and no exception but the chained file's. What a rank gets is in `_diag_hook`.
"""

# pathlib is not loaded at this point of a start:
# ruff: noqa: PTH100, PTH112, PTH120

import os
import sys

# Who says that a process is a rank. The first that is set names it. Order as in torch: its own variables
# first.
_RANK_VARIABLES = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "LOCAL_RANK",
)


def _hook():
    run_dir = os.environ.get("DIAG_RUN_DIR")
    if not run_dir:
        return
    for name in _RANK_VARIABLES:
        rank = os.environ.get(name)
        if rank and rank.isdigit():
            break
    else:
        return
    try:
        if "_diag_hook" not in sys.modules and os.path.isdir(run_dir):
            import _diag_hook

            _diag_hook.start(os.path.abspath(run_dir), int(rank))
    except Exception:  # whatever it is, the job starts as if we were not here
        pass


def _hand_on():
    here = os.path.dirname(__file__)
    if here not in sys.path:
        return
    rest = sys.path[sys.path.index(here) + 1 :]
    # From here on sys.path is what the job would have had; children find us through PYTHONPATH again.
    sys.path[:] = [entry for entry in sys.path if entry != here]
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", rest, None) if hasattr(finder, "find_spec") else None
        if spec is not None:
            break
    else:
        return
    if spec.loader is None:  # a folder without __init__.py: an import would make an empty package of it
        return
    # Not `import sitecustomize`: another tool that chains like us may come before us on sys.path and would
    # be found again. As the import system does it: in sys.modules while it runs, taken out when it raises,
    # the exception goes on.
    before = sys.modules.get("sitecustomize")
    module = sys.modules["_frozen_importlib"].module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules["sitecustomize"]
        else:
            sys.modules["sitecustomize"] = before
        raise


def _keep_lines():
    """diag's terminal is a terminal, CMD's output a file: let lines come when they are printed, as they would
    alone. Not PYTHONUNBUFFERED: that makes a write of each argument of print(), and ranks would tear each
    other's lines."""
    if os.environ.get("DIAG_LINE_BUFFERED"):
        try:
            sys.stdout.reconfigure(line_buffering=True)
        except Exception:  # no stdout, or one of another kind
            pass


_keep_lines()
_hook()
_hand_on()
