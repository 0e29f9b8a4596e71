"""Strength of the policy: it plays as many games as fit into the given time."""
import random
import time

import torch

N = 6


def lines():
    for y in range(N):
        for x in range(N):
            for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1)):
                if 0 <= x + 3 * dx < N and 0 <= y + 3 * dy < N:
                    yield [(y + k * dy) * N + x + k * dx for k in range(4)]


LINES = list(lines())


def winner(board):
    for line in LINES:
        s = sum(board[i] for i in line)
        if s == 4:
            return 1
        if s == -4:
            return -1
    return 0


def play(policy, rng):
    board, player = [0.0] * (N * N), 1
    first = rng.choice((1, -1))
    while 0.0 in board:
        free = [i for i, v in enumerate(board) if v == 0]
        if player == first:
            with torch.no_grad():
                scores = policy(torch.tensor(board) * player)
            move = max(free, key=lambda i: scores[i].item())
        else:
            move = rng.choice(free)
        board[move] = float(player)
        w = winner(board)
        if w:
            return 1.0 if w == first else 0.0
        player = -player
    return 0.5


def strength(policy, seconds, seed=0):
    rng = random.Random(seed)
    end, results = time.monotonic() + seconds, []
    while time.monotonic() < end:
        results.append(play(policy, rng))
    return sum(results) / len(results), len(results)
