"""Keeps this workstation usable: suspends a process of ours that takes too much memory,
lets it go on when it takes less again.

    memguard.py PIDS_FOLDER [--high MB] [--low MB]
"""
import argparse
import glob
import os
import signal
import time


def rss_mb(pid):
    try:
        with open(f"/proc/{pid}/statm") as fh:
            return int(fh.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        return None


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folder")
    ap.add_argument("--high", type=float, default=900)
    ap.add_argument("--low", type=float, default=750)
    ap.add_argument("--every", type=float, default=1.0)
    a = ap.parse_args()
    suspended = set()
    log = open("memguard.log", "w", buffering=1)
    while True:
        for path in glob.glob(os.path.join(a.folder, "*.pid")):
            try:
                pid = int(open(path).read())
            except ValueError:
                continue
            mb = rss_mb(pid)
            if mb is None:
                continue
            if mb > a.high and pid not in suspended:
                os.kill(pid, signal.SIGSTOP)
                suspended.add(pid)
                log.write(f"{time.strftime('%X')} {pid} {mb:.0f} MB: suspended\n")
            elif mb < a.low and pid in suspended:
                os.kill(pid, signal.SIGCONT)
                suspended.discard(pid)
                log.write(f"{time.strftime('%X')} {pid} {mb:.0f} MB: continued\n")
        time.sleep(a.every)


if __name__ == "__main__":
    main()
