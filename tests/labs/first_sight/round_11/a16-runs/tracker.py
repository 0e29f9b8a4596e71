"""All runs and all their workers share one small database."""
import os
import sqlite3
import time


class Tracker:
    def __init__(self, path, run, worker):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.db = sqlite3.connect(path, timeout=3600)
        self.run, self.worker = run, worker
        with self.db:
            self.db.execute("CREATE TABLE IF NOT EXISTS steps (run TEXT, worker INT, step INT, loss REAL, t REAL)")
            self.db.execute("CREATE TABLE IF NOT EXISTS evals (run TEXT, step INT, name TEXT, value REAL)")

    def step(self, step, loss):
        with self.db:
            self.db.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", (self.run, self.worker, step, loss, time.time()))

    def evaluation(self, step, values):
        self.db.executemany("INSERT INTO evals VALUES (?, ?, ?, ?)",
                            [(self.run, step, k, v) for k, v in values.items()])

    def recent(self, n=20):
        rows = self.db.execute("SELECT loss FROM steps WHERE run = ? ORDER BY t DESC LIMIT ?", (self.run, n)).fetchall()
        return sum(r[0] for r in rows) / max(1, len(rows))
