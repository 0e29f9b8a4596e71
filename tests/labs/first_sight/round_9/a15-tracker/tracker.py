"""Metrics of all ranks in one SQLite file next to the run."""
import contextlib
import sqlite3
import time


class Tracker:
    def __init__(self, path, rank):
        self.rank = rank
        self.db = sqlite3.connect(path, timeout=3600, isolation_level=None)
        self.db.execute("create table if not exists metrics (at real, rank int, step int, name text, value real)")

    @contextlib.contextmanager
    def batch(self):
        self.db.execute("begin immediate")
        try:
            yield self
        except BaseException:
            self.db.execute("rollback")
            raise
        self.db.execute("commit")

    def log(self, step, name, value):
        self.db.execute("insert into metrics values (?, ?, ?, ?, ?)", (time.time(), self.rank, step, name, float(value)))
