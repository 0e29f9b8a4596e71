"""Read access to the feature table (SQLite), through a small pool of connections."""
import contextlib
import queue
import sqlite3
import threading
import time

import numpy as np

DIM = 48


def create(path, rows):
    con = sqlite3.connect(path)
    con.execute("create table features (id integer primary key, label integer, vec blob)")
    rng = np.random.default_rng(11)
    con.executemany("insert into features values (?, ?, ?)",
                    ((i, int(rng.integers(0, 4)), rng.standard_normal(DIM).astype(np.float32).tobytes())
                     for i in range(rows)))
    con.commit()
    con.close()


class FeatureStore:
    def __init__(self, path, connections=1):
        self._pool = queue.LifoQueue()
        for _ in range(connections):
            self._pool.put(sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False))
        self.label_counts = {}

    @contextlib.contextmanager
    def connection(self):
        con = self._pool.get()
        try:
            yield con
        finally:
            self._pool.put(con)

    def get(self, key):
        with self.connection() as con:
            label, vec = con.execute("select label, vec from features where id = ?", (key,)).fetchone()
        return np.frombuffer(vec, dtype=np.float32).copy(), label

    def __len__(self):
        with self.connection() as con:
            return con.execute("select count(*) from features").fetchone()[0]

    def recount(self):
        """Count the labels anew, page by page, so as not to burden the disk."""
        counts, at = {}, 0
        with self.connection() as con:
            while rows := con.execute("select label from features where id >= ? and id < ?", (at, at + 200)).fetchall():
                for (label,) in rows:
                    counts[label] = counts.get(label, 0) + 1
                at += 200
                time.sleep(0.5)
        self.label_counts = counts

    def recount_in_background(self):
        threading.Thread(target=self.recount, name="recount", daemon=True).start()
