import subprocess
import sys


class CaptionScore:
    def __init__(self):
        self.proc = subprocess.Popen([sys.executable, "scorer.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     text=True, bufsize=1)

    @staticmethod
    def _clean(lines):
        return [t for t in (line.strip().lower() for line in lines) if t]

    def __call__(self, hypotheses, references):
        text = "\n".join(self._clean(hypotheses) + self._clean(references))
        self.proc.stdin.write(f"SCORE {len(hypotheses)}\n{text}\n")
        self.proc.stdin.flush()
        return float(self.proc.stdout.readline())

    def close(self):
        self.proc.stdin.close()
        self.proc.wait()
