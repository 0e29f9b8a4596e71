"""Run catalogue: one row per epoch, one row per worker and epoch."""
import logging
import sqlite3
import time

log = logging.getLogger("catalog")

SCHEMA = """
CREATE TABLE IF NOT EXISTS epochs (epoch INTEGER PRIMARY KEY, loss REAL, lr REAL, created REAL);
CREATE TABLE IF NOT EXISTS worker_stats (epoch INTEGER, worker INTEGER, step INTEGER, loss REAL);
CREATE TABLE IF NOT EXISTS best (id INTEGER PRIMARY KEY CHECK (id = 0), epoch INTEGER, loss REAL);
"""


class Catalog:
    def __init__(self, path):
        self.db = sqlite3.connect(path, timeout=5.0)

    def create(self):
        self.db.executescript(SCHEMA)
        self.db.commit()

    def close_epoch(self, epoch, loss, lr):
        """Write the summary row; returns True when this is the best epoch so far."""
        self.db.execute("INSERT INTO epochs VALUES (?, ?, ?, ?)", (epoch, loss, lr, time.time()))
        row = self.db.execute("SELECT loss FROM best").fetchone()
        if row is not None and row[0] <= loss:
            return False
        self.db.execute("INSERT OR REPLACE INTO best VALUES (0, ?, ?)", (epoch, loss))
        self.db.commit()
        return True

    def add_worker(self, epoch, worker, losses):
        rows = [(epoch, worker, i, v) for i, v in enumerate(losses)]
        while True:
            try:
                with self.db:
                    self.db.executemany("INSERT INTO worker_stats VALUES (?, ?, ?, ?)", rows)
                return
            except sqlite3.OperationalError as e:
                log.debug("retry: %s", e)
                time.sleep(0.2)

    def close(self):
        self.db.commit()
        self.db.close()
