"""Grades generated answers: pulls the final answer out of a text and compares it."""
import multiprocessing as mp
import re
import resource

FINAL = re.compile(r"^(?:\\boxed\{)?((?:[a-z0-9]+[ ,]?)+)(?:\})?\.$")


def limits(cpu_seconds):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))


def grade(pair):
    text, want = pair
    last = text.strip().splitlines()[-1].lower()
    m = FINAL.match(last)
    return 1.0 if m and m.group(1).strip() == want else 0.0


class Grader:
    def __init__(self, workers=2, cpu_seconds=4):
        self.pool = mp.get_context("fork").Pool(workers, initializer=limits, initargs=(cpu_seconds,))

    def score(self, pairs):
        marks = self.pool.map(grade, pairs, chunksize=4)
        return sum(marks) / len(marks)
