"""Really imports modules, and reports what happened; asked by JSON in argv, answers with JSON.

It runs by `python -c` in CMD's Python, without GPUs, in a process of its own: what is imported may crash,
hang or print.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    asked = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.path[:1] == [""]:  # what CMD will have there instead
        sys.path[:1] = [asked["first"]] if asked["first"] else []
    for folder in asked["before"]:
        sys.path.insert(0, folder)
    trace = open(asked["trace"], "w")  # noqa: SIM115 - to the end
    import faulthandler
    import gc

    gc.disable()  # a process that imports and ends: looking for circles takes a tenth of its time
    faulthandler.enable()  # where it crashed, on stderr
    faulthandler.dump_traceback_later(asked["deadline"], file=trace)  # where one is that does not end
    answer: dict[str, Any] = {"error": "", "kind": ""}
    try:
        for name in asked["imports"]:
            __import__(name)
    except BaseException as error:
        answer["kind"] = type(error).__name__
        answer["error"] = "\n".join(messages(error))[:4000]
    if not answer["kind"] and "torch" in asked["imports"]:
        answer["torch"] = of_torch(asked["compiles"])
    Path(asked["out"]).write_text(json.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what was imported may wait at exit


def messages(error: BaseException | None) -> list[str]:
    """Its own, then those of what it was raised from: torchaudio and transformers put their own over the
    loader's."""
    found: list[str] = []
    while error is not None and len(found) < 10:
        found.append(str(error) or type(error).__name__)
        error = error.__cause__
    return found


def of_torch(compiles: bool) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"cxx11_abi": getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", None)}
    try:
        torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    except Exception as error:
        found["cudnn_error"] = str(error)[:1000]
    if torch.version.cuda:
        found["driver_cuda"] = driver()
    if compiles:
        try:
            from torch.utils import cpp_extension

            found["cuda_home"] = cpp_extension.CUDA_HOME
            bounds = getattr(cpp_extension, "CUDA_GCC_VERSIONS", {})
            found["gcc_bounds"] = {cuda: [list(one) for one in pair] for cuda, pair in bounds.items()}
        except Exception:
            pass  # the line about the toolkit says what is missing
    return found


def driver() -> int | None:
    """CUDA version of the libcuda that torch will find here, the compatibility package included; it
    initialises nothing."""
    import ctypes

    try:
        number = ctypes.c_int()
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
        return None if failed else number.value
    except (OSError, AttributeError):
        return None


if __name__ == "__main__":  # as `python -c` has it too
    main()
