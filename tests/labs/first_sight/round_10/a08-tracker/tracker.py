"""Run tracker on SQLite: every rank adds rows, export.py turns whole epochs into CSV."""
import sqlite3

SCHEMA = """
CREATE TABLE IF NOT EXISTS metrics(epoch INT, step INT, rank INT, loss REAL, gnorm REAL);
CREATE TABLE IF NOT EXISTS exported(epoch INT PRIMARY KEY, rows INT);
"""


def connect(path):
    con = sqlite3.connect(path, timeout=3600, isolation_level=None)
    con.executescript(SCHEMA)
    return con


class Tracker:
    def __init__(self, path, rank, every=20):
        self.con = connect(path)
        self.rank, self.every = rank, every
        self.rows = []

    def add(self, epoch, step, loss, gnorm):
        self.rows.append((epoch, step, self.rank, loss, gnorm))
        # not all ranks at once
        if (step + 10 * self.rank) % self.every == 0:
            self.flush()

    def flush(self):
        self.con.execute("BEGIN")
        self.con.executemany("INSERT INTO metrics VALUES (?,?,?,?,?)", self.rows)
        self.con.execute("COMMIT")
        self.rows.clear()

    def close(self):
        self.flush()
        self.con.close()
