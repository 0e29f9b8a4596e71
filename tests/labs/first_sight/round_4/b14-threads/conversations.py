"""Conversation trees of the crawl in SQLite; a sample is a leaf with all messages above it."""
import random
import sqlite3

PATH_TO_ROOT = """
WITH RECURSIVE up(id, parent, chars) AS (
    SELECT id, parent, length(body) FROM message WHERE id = ?
  UNION ALL
    SELECT m.id, m.parent, length(m.body) FROM message m JOIN up ON m.id = up.parent
)
SELECT count(*), sum(chars) FROM up
"""


def build(rank, trees=400):
    rng = random.Random(rank)
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, parent INTEGER, body TEXT)")
    leaves, nid = [], 1
    for t in range(trees):
        root = prev = nid
        db.execute("INSERT INTO message VALUES (?, NULL, ?)", (nid, "q" * rng.randint(20, 200)))
        nid += 1
        for _ in range(rng.randint(1, 9)):
            db.execute("INSERT INTO message VALUES (?, ?, ?)", (nid, prev, "a" * rng.randint(20, 400)))
            prev = nid
            nid += 1
        if rank == 1 and t == 318:
            # merged by the crawler: the "original" quotes its own answer
            db.execute("UPDATE message SET parent = ? WHERE id = ?", (prev, root))
        leaves.append(prev)
    db.execute("CREATE INDEX by_parent ON message(parent)")
    db.commit()
    return db, leaves


class Samples:
    def __init__(self, rank):
        self.db, self.leaves = build(rank)
        self.at = 0

    def next(self, n):
        rows = []
        for _ in range(n):
            leaf = self.leaves[self.at % len(self.leaves)]
            self.at += 1
            rows.append(self.db.execute(PATH_TO_ROOT, (leaf,)).fetchone())
        return rows
