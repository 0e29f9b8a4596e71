"""Filter process: one JSON clip per line in, one out."""
import json
import random
import sys


def main():
    rng = random.Random(0)
    for n, line in enumerate(sys.stdin):
        samples = json.loads(line)
        clipped = sum(abs(s) > 1 for s in samples)
        if clipped:
            sys.stderr.write(f"effects: WARN in:{n} rate: clipped {clipped} of {len(samples)} samples; decrease volume?\n")
            sys.stderr.write("effects: WARN dither: dither clipped; the output may be distorted\n")
        gain = 10 ** (rng.uniform(-6, 0) / 20)
        out = [max(-1.0, min(1.0, s * gain)) for s in samples]
        print(json.dumps(out), flush=True)


main()
