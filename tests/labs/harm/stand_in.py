"""A `diag run` that does harm: the real one, with one defect beside it. `python stand_in.py DEFECT run
OPTIONS -- CMD ...`"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

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
    """Once all ranks of the job print."""
    root = Path(sys.argv[sys.argv.index("--run-root") + 1])
    end = time.monotonic() + _STARTED_SECONDS
    while time.monotonic() < end:
        text = b"".join(path.read_bytes() for path in root.glob("*/output.log"))
        found = ranks()
        if found and all(b"rank %d attempt 0 line 1\n" % number in text for number in range(len(found))):
            work(found)
            return
        time.sleep(0.02)


if __name__ == "__main__":
    DEFECT = sys.argv[1]
    if DEFECT in ("stops-ranks", "kills-a-rank"):
        threading.Thread(
            target=later, args=({"stops-ranks": stop, "kills-a-rank": kill_one}[DEFECT],), daemon=True
        ).start()
    CODE = subprocess.run([sys.executable, "-m", "diag", *sys.argv[2:]], check=False).returncode
    if DEFECT == "leaves-a-process":
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
    sys.exit(CODE if CODE >= 0 else 128 - CODE)
