"""Writes a rank's whole Flight Recorder, as a watchdog of NCCL would, when the file `go` appears in
GAUNTLET_DUMPS.

A thread with the GIL, as torch's own Python API needs it: a rank that is stopped, dead or sits on its GIL
gives no dump. Not of diag: for the tools that the gauntlet compares it with.
"""
# ruff: noqa: PTH104, PTH110 - pathlib is not loaded at this point of a start

import _thread
import os
import sys
import time

_FOLDER = os.environ.get("GAUNTLET_DUMPS")


def _watch_for_go():
    while not os.path.exists(_FOLDER + "/go"):
        time.sleep(0.3)
    recorder = sys.modules.get("torch._C._distributed_c10d")
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if recorder is None or c10d is None or not c10d.is_initialized():
        return
    import json

    rank = os.environ["RANK"]
    groups = {}
    for group, ranks in c10d._world.pg_group_ranks.items():
        if isinstance(group, int):  # NON_GROUP_MEMBER: a group that this rank is not in
            continue
        groups[group.group_name] = {"desc": group.group_desc, "ranks": sorted(ranks)}
    with open(f"{_FOLDER}/groups_{rank}.json", "w") as file:
        json.dump(groups, file)
    dump = recorder._dump_fr_trace(True, True, False)
    with open(f"{_FOLDER}/part_{rank}", "wb") as file:
        file.write(dump)
    os.rename(f"{_FOLDER}/part_{rank}", f"{_FOLDER}/_dump_{rank}")


if _FOLDER and "RANK" in os.environ and not any("multiprocessing" in word for word in sys.orig_argv):
    _thread.start_new_thread(_watch_for_go, ())
