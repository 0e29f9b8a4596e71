"""First on PYTHONPATH of a job under `diag run`: hooks the ranks and what may become one, then runs the
sitecustomize that would have run.

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


_TORCH = "torch.distributed.distributed_c10d"  # the module that makes process groups


def _hook():
    run_dir = os.environ.get("DIAG_RUN_DIR")
    if not run_dir:
        return
    try:
        if "_diag_hook" in sys.modules or not os.path.isdir(run_dir):
            return
        run_dir = os.path.abspath(run_dir)
        for name in _RANK_VARIABLES:
            rank = os.environ.get(name)
            if rank and rank.isdigit():
                import _diag_hook

                _diag_hook.start(run_dir, int(rank))
                return
        sys.meta_path.insert(0, _Waiter(run_dir, os.path.dirname(__file__)))
    except Exception:  # whatever it is, the job starts as if we were not here
        pass


class _Waiter:
    """In a process without a rank's variables (mp.spawn's children, Ray's actors, launchers): loads the hook when
    torch's process groups are imported, then takes itself away. Costs other processes 0.1 us an import."""

    def __init__(self, run_dir, here):
        self._run_dir, self._here = run_dir, here

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _TORCH or self not in sys.meta_path:
            return None
        try:
            sys.meta_path.remove(self)
            # Our folder is not on sys.path any more.
            finder = sys.modules["_frozen_importlib_external"].PathFinder
            spec = finder.find_spec("_diag_hook", [self._here])
            hook = sys.modules["_frozen_importlib"].module_from_spec(spec)
            sys.modules["_diag_hook"] = hook
            spec.loader.exec_module(hook)
            hook.watch(self._run_dir)
            # The import system goes on with what stood behind us; the hook's own finder stands in our place.
            return sys.meta_path[0].find_spec(fullname, path, target)
        except Exception:
            return None


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
