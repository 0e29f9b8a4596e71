import json
import os
import random


def make(path, n=1200):
    """The prompt set, as the three sources were merged: qa, math, code and (late in the file) chat."""
    rnd = random.Random(11)
    with open(path + ".new", "w") as f:
        for i in range(n):
            kinds = ["qa", "math", "code"] if i < 300 else ["qa", "math", "code", "chat"]
            kind = rnd.choice(kinds)
            a, b = rnd.randrange(100), rnd.randrange(100)
            f.write(json.dumps({"id": i, "kind": kind, "question": f"What is {a} and {b} together?"}) + "\n")
    os.replace(path + ".new", path)


def load(path):
    if not os.path.exists(path):
        make(path)
    with open(path) as f:
        return [json.loads(line) for line in f]
