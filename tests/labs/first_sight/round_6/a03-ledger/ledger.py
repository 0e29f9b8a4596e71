import sqlite3
import time


class Ledger:
    """Which samples were used, so that a run that is resumed does not see them twice."""

    def __init__(self, path, rank):
        self.rank = rank
        self.conn = sqlite3.connect(path, timeout=1800, isolation_level=None)
        self.conn.execute("CREATE TABLE IF NOT EXISTS used(rank INT, step INT, sample INT, at REAL)")
        self.conn.execute("CREATE TABLE IF NOT EXISTS summary(step INT, n INT, lo INT, hi INT)")

    def record(self, step, samples):
        now = time.time()
        rows = ",".join(f"({self.rank},{step},{int(s)},{now})" for s in samples)
        self.conn.execute("INSERT INTO used VALUES " + rows)

    def compact(self, step, keep=40):
        """Fold rows older than `keep` steps into the summary."""
        self.conn.execute("BEGIN IMMEDIATE")
        n, lo, hi = self.conn.execute(
            "SELECT COUNT(*), MIN(sample), MAX(sample) FROM used WHERE step < ? AND rank = 0", (step - keep,)
        ).fetchone()
        if n < 100:
            return 0
        self.conn.execute("INSERT INTO summary VALUES(?,?,?,?)", (step, n, lo, hi))
        self.conn.execute("DELETE FROM used WHERE step < ?", (step - keep,))
        self.conn.execute("COMMIT")
        return n
