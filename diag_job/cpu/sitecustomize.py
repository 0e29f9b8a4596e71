# ruff: noqa: PTH100, PTH120 - runs in every Python of the job; pathlib is the slowest of its imports
"""Put this folder on PYTHONPATH and a Megatron job can run without GPU, or with a fault, its own files
untouched.

DIAG_JOB_DEVICE=cpu arms the CPU device layer and the stand-ins for CUDA-only packages; DIAG_FAULT arms a
fault. With neither set it does nothing but hand on to the next sitecustomize on sys.path: Python loads only
the first.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load_job_package():
    # By path and under its own name: the job's environment need not have diag installed, and putting diag's
    # site-packages on its path could change what the job imports.
    name = "diag_job"
    if name not in sys.modules:
        folder = os.path.dirname(_HERE)
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return name


def _arm():
    cpu, fault = os.environ.get("DIAG_JOB_DEVICE") == "cpu", os.environ.get("DIAG_FAULT")
    if not (cpu or fault):
        return
    name = _load_job_package()
    if fault:
        importlib.import_module(name + ".faults").arm()
    if cpu:
        stand_ins = os.path.join(_HERE, "stand_ins")
        if stand_ins not in sys.path:
            sys.path.insert(0, stand_ins)
        # Only once the process imports torch: launchers and helpers that never do stay as light as they are.
        after_import = importlib.import_module(name + ".after_import").after_import
        after_import("torch", lambda torch: importlib.import_module(name + ".device").install())


def _hand_on():
    here = [i for i, p in enumerate(sys.path) if os.path.realpath(p or ".") == os.path.realpath(_HERE)]
    rest = sys.path[here[-1] + 1 :] if here else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


_arm()
_hand_on()
