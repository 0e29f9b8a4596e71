"""Generation engine: reads prompts from stdin, writes completions to stdout, one JSON line each."""
import json
import random
import sys
import time

rnd = random.Random(int(sys.argv[1]))
for line in sys.stdin:
    req = json.loads(line)
    out = []
    for p in req["prompts"]:
        time.sleep(0.25)
        out.append(p + [rnd.randrange(2, 128) for _ in range(16)])
    print(json.dumps({"ids": out}), flush=True)
