"""A process that uses RDMA as NCCL does: opens a device and registers memory. `python hold.py DEVICE BYTES`.

It prints what came of it as JSON, keeps it until its stdin ends, and says on stderr what libibverbs says
there. Needs nothing but libibverbs.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import sys

_V = ctypes.c_void_p
_LOCAL_WRITE, _REMOTE_WRITE, _REMOTE_READ = 1, 2, 4


def open_and_register(device: str, size: int) -> dict[str, object]:
    """{"library": None or the error, "devices": names, "opened": bool, "registered": bool, "errno": name of
    the error}.

    `device` "" is the first one. What was opened stays open for as long as the process lives.
    """
    try:
        verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    except OSError as error:
        return {"library": str(error), "devices": [], "opened": False, "registered": False, "errno": ""}
    for name, result, arguments in (
        ("ibv_get_device_list", ctypes.POINTER(_V), [ctypes.POINTER(ctypes.c_int)]),
        ("ibv_get_device_name", ctypes.c_char_p, [_V]),
        ("ibv_open_device", _V, [_V]),
        ("ibv_alloc_pd", _V, [_V]),
        ("ibv_reg_mr", _V, [_V, _V, ctypes.c_size_t, ctypes.c_int]),
    ):
        function = getattr(verbs, name)
        function.restype, function.argtypes = result, arguments
    count = ctypes.c_int(0)
    listed = verbs.ibv_get_device_list(ctypes.byref(count))
    found = {verbs.ibv_get_device_name(listed[i]).decode(): listed[i] for i in range(count.value)}
    said = {"library": None, "devices": sorted(found), "opened": False, "registered": False, "errno": ""}
    chosen = found.get(device) if device else next(iter(found.values()), None)
    if chosen is None:
        return said
    ctypes.set_errno(0)
    context = verbs.ibv_open_device(chosen)
    said["opened"] = bool(context)
    if context:
        domain = verbs.ibv_alloc_pd(context)
        memory = mmap.mmap(-1, size)
        address = ctypes.addressof((ctypes.c_char * size).from_buffer(memory))
        _KEPT.append(memory)
        ctypes.set_errno(0)
        said["registered"] = bool(
            verbs.ibv_reg_mr(domain, address, size, _LOCAL_WRITE | _REMOTE_WRITE | _REMOTE_READ)
        )
    said["errno"] = errno.errorcode.get(ctypes.get_errno(), "") if not said["registered"] else ""
    return said


_KEPT: list[mmap.mmap] = []

if __name__ == "__main__":
    print(json.dumps(open_and_register(sys.argv[1], int(sys.argv[2]))), flush=True)
    sys.stdin.read()
