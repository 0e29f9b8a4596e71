"""Caption scorer. Reads `SCORE n`, then n hypotheses and n references, one a line; answers with one number."""
import sys


def f1(a, b):
    a, b = a.split(), b.split()
    hit = len(set(a) & set(b))
    return 2 * hit / max(1, len(a) + len(b))


def main():
    while True:
        head = sys.stdin.readline()
        if not head:
            return
        n = int(head.split()[1])
        lines = [sys.stdin.readline().rstrip("\n") for _ in range(2 * n)]
        score = sum(f1(h, r) for h, r in zip(lines[:n], lines[n:])) / n
        print(f"{score:.6f}", flush=True)


main()
