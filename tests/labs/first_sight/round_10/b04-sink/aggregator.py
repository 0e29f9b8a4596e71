"""Takes training records as JSON lines on stdin, keeps running statistics, answers each record with its summary."""
import json
import sys
from collections import defaultdict, deque


class Series:
    def __init__(self, window=50):
        self.values = deque(maxlen=window)
        self.n = 0

    def add(self, v):
        self.values.append(v)
        self.n += 1

    def summary(self):
        vs = sorted(self.values)
        k = len(vs)
        return {"n": self.n, "mean": sum(vs) / k, "p50": vs[k // 2], "p90": vs[int(k * 0.9)], "max": vs[-1]}


def main():
    series = defaultdict(Series)
    out = open(sys.argv[1], "a", buffering=1)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        rec = json.loads(line)
        for key, v in rec["scalars"].items():
            series[key].add(v)
        for layer, norms in rec["layers"].items():
            for k, v in norms.items():
                series[f"{layer}/{k}"].add(v)
        answer = {"step": rec["step"], "summary": {k: s.summary() for k, s in series.items()}}
        print(json.dumps(answer), flush=True)
        if rec["step"] % 20 == 0:
            out.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
