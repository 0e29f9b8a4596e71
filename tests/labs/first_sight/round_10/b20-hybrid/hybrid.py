"""Engine and trainer share the cores of a node: the engine is put to sleep while the trainer trains."""
import json
import os
import signal
import subprocess
import sys


class Engine:
    def __init__(self, seed):
        self.proc = subprocess.Popen([sys.executable, "engine.py", str(seed)], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, bufsize=1)

    def sleep(self):
        os.kill(self.proc.pid, signal.SIGSTOP)

    def wake(self):
        os.kill(self.proc.pid, signal.SIGCONT)

    def generate(self, prompts):
        self.proc.stdin.write(json.dumps({"prompts": prompts}) + "\n")
        return json.loads(self.proc.stdout.readline())["ids"]

    def close(self):
        self.wake()
        self.proc.stdin.close()
        self.proc.wait()
