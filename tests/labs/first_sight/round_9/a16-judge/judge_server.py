import sys

for line in sys.stdin:
    a, b = map(float, line.split())
    print("a" if a < b else "b", flush=True)
