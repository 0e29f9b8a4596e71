"""stdin: one JSON object a line; appends a TSV row to argv[1] and echoes a readable line."""
import json
import sys

with open(sys.argv[1], "a") as table:
    for line in sys.stdin:
        row = json.loads(line)
        hist = row.pop("hist")
        table.write("\t".join(str(v) for v in row.values()) + "\n")
        table.flush()
        shown = " ".join(f"{k}={v}" for k, v in row.items())
        spark = "; ".join(f"{n}: " + ",".join(f"{c:4d}" for c in h) for n, h in hist.items())
        print(f"{shown} | {spark}", flush=True)
