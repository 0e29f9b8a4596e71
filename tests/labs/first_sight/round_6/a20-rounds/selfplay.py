"""Plays games for the next round of training, in parts, and marks the round as ready."""
import json
import os
import random
import sys
import time


def game(rng):
    board, moves = [0] * 9, []
    for turn in range(9):
        move = rng.choice([i for i, v in enumerate(board) if v == 0])
        board[move] = 1 + turn % 2
        moves.append(move)
    return moves


def main(rounds, seconds):
    for r in range(rounds):
        rng = random.Random(r)
        until = time.time() + (2 if r == 0 else seconds)
        n = 0
        with open(f"games/round{r}.jsonl", "w") as f:
            while time.time() < until or n < 2000:
                for _ in range(20):
                    f.write(json.dumps(game(rng)) + "\n")
                    n += 1
                f.flush()
                time.sleep(0.05)  # the engine thinks
        with open(f"games/round{r}.ready.tmp", "w") as f:
            f.write(str(n))
        os.replace(f"games/round{r}.ready.tmp", f"games/round{r}.ready")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
