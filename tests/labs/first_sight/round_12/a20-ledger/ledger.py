import sqlite3

SCHEMA = """
CREATE TABLE IF NOT EXISTS metrics (run TEXT, rank INTEGER, step INTEGER, loss REAL);
CREATE TABLE IF NOT EXISTS leaders (run TEXT, step INTEGER, score REAL);
"""
PATIENCE = 6 * 3600  # the volume is slow at night


def create(path):
    con = sqlite3.connect(path)
    con.executescript(SCHEMA)
    con.commit()
    con.close()


class Metrics:
    def __init__(self, path, run, rank):
        self.con = sqlite3.connect(path, timeout=PATIENCE)
        self.run, self.rank = run, rank

    def record(self, step, loss):
        with self.con:
            self.con.execute("INSERT INTO metrics VALUES (?, ?, ?, ?)", (self.run, self.rank, step, loss))


class Leaders:
    def __init__(self, path, run):
        self.con = sqlite3.connect(path, timeout=PATIENCE)
        self.run = run

    def best(self):
        return self.con.execute("SELECT min(score) FROM leaders").fetchone()[0]

    def enter(self, step, score):
        self.con.execute("INSERT INTO leaders VALUES (?, ?, ?)", (self.run, step, score))

    def close(self):
        self.con.commit()
        self.con.close()
