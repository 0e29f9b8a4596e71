"""A `diag run` that does harm: the real one, with one defect beside it. `python stand_in.py DEFECT run OPTIONS -- CMD ...`"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil

_STARTED_SECONDS = 20.0
_STOPPED_SECONDS = 3.5


def ranks() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "IS_RANK" in process.environ():
                found.append(process)
    return found


def stop(found: list[psutil.Process]) -> None:
    for process in found:
        process.suspend()
    time.sleep(_STOPPED_SECONDS)
    for process in found:
        process.resume()


def kill_one(found: list[psutil.Process]) -> None:
    found[-1].kill()


def later(work: Callable[[list[psutil.Process]], None]) -> None:
    """Once the job has ranks."""
    end = time.monotonic() + _STARTED_SECONDS
    while not (found := ranks()) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)  # into its lines
    work(found)


if __name__ == "__main__":
    DEFECT = sys.argv[1]
    if DEFECT in ("stops-ranks", "kills-a-rank"):
        threading.Thread(target=later, args=({"stops-ranks": stop, "kills-a-rank": kill_one}[DEFECT],), daemon=True).start()
    CODE = subprocess.run([sys.executable, "-m", "diag", *sys.argv[2:]], check=False).returncode
    if DEFECT == "leaves-a-process":
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
    sys.exit(CODE if CODE >= 0 else 128 - CODE)
