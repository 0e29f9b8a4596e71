"""Asks the judge model for its opinion of pairs of answers; it takes three pairs in five seconds."""
import subprocess
import sys
import time


class Judge:
    def __init__(self, rate=0.6):
        self.gap = 1 / rate
        self.next_at = 0.0
        self.proc = subprocess.Popen([sys.executable, "judge_server.py"], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)

    def better(self, a, b):
        wait = self.next_at - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self.next_at = time.monotonic() + self.gap
        self.proc.stdin.write(f"{a:.6f} {b:.6f}\n")
        self.proc.stdin.flush()
        return self.proc.stdout.readline().strip() == "a"

    def close(self):
        self.proc.stdin.close()
        self.proc.wait()
