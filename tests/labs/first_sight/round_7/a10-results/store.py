"""Results of a run in one SQLite file that all ranks write."""
import sqlite3

SCHEMA = """
CREATE TABLE IF NOT EXISTS step (epoch INT, step INT, loss REAL, lr REAL);
CREATE TABLE IF NOT EXISTS answer (epoch INT, item INT, guess INT, truth INT);
"""


class Results:
    def __init__(self, path, create=False):
        self.db = sqlite3.connect(path, timeout=24 * 3600)
        if create:
            self.db.executescript(SCHEMA)
            self.db.commit()

    def step(self, epoch, step, loss, lr):
        self.db.execute("INSERT INTO step VALUES (?, ?, ?, ?)", (epoch, step, loss, lr))
        if step % 25 == 0:
            self.db.commit()

    def answers(self, epoch, rows):
        self.db.executemany("INSERT INTO answer VALUES (?, ?, ?, ?)", [(epoch, *r) for r in rows])
        self.db.commit()

    def close(self):
        self.db.commit()
        self.db.close()
