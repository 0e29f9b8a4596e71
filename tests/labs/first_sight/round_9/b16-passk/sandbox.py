import subprocess
import sys


def passes(program, test, limit=10.0):
    """Runs a candidate with its test in a process of its own; not in time means not passed."""
    try:
        r = subprocess.run([sys.executable, "-I", "-c", program + "\n" + test], stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit)
        return r.returncode == 0
    except subprocess.TimeoutExpired:
        return False
