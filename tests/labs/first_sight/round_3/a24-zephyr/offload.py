import os
import subprocess
import sys
import time

COPY = """
import shutil, sys, time
time.sleep(1.5)
shutil.copy(sys.argv[1], sys.argv[2])
"""


def running(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


class Offload:
    """Copies checkpoints to the archive by a process of its own; not more than one at a time."""

    def __init__(self, archive):
        os.makedirs(archive, exist_ok=True)
        self.archive, self.proc = archive, None

    def push(self, path):
        while self.proc is not None and running(self.proc.pid):
            time.sleep(0.05)
        target = os.path.join(self.archive, os.path.basename(path))
        self.proc = subprocess.Popen([sys.executable, "-c", COPY, path, target])
