import torch

from report import Report

problems = []


def parse(row):
    a, op, b = row.split()
    a, b = float(a), float(b)
    if op == "/" and b == 0:
        raise ValueError(f"cannot evaluate {row!r}")
    return a, b, {"+": a + b, "-": a - b, "*": a * b / 10, "/": a / b if b else 0.0}[op], "+-*/".index(op)


@torch.no_grad()
def evaluate(model, rows, folder, step, group):
    report = Report(folder, f"eval{step:05d}", group)
    total = n = 0
    for row in rows:
        try:
            a, b, want, op = parse(row)
        except ValueError as e:
            problems.append(e)
            continue
        got = model(torch.tensor([[a, b, *(float(op == i) for i in range(4))]])).item()
        total, n = total + abs(got - want), n + 1
        report.add(row=row, want=round(want, 3), got=round(got, 3))
    return total / max(n, 1)
