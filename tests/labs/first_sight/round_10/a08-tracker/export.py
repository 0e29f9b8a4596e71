"""export.py DB OUT ROWS_PER_EPOCH: waits for the next epoch to be complete and writes OUT/epoch_N.csv"""
import csv
import os
import sys
import time

from tracker import connect


def count(con, epoch):
    return con.execute("SELECT count(*) FROM metrics WHERE epoch=?", (epoch,)).fetchone()[0]


def export(con, epoch, out, rows):
    con.execute("BEGIN IMMEDIATE")
    while count(con, epoch) < rows:
        time.sleep(0.2)
    with open(os.path.join(out, f"epoch_{epoch}.csv"), "w", newline="") as fh:
        w = csv.writer(fh)
        w.writerow(["step", "rank", "loss", "gnorm"])
        w.writerows(con.execute("SELECT step, rank, loss, gnorm FROM metrics WHERE epoch=? "
                                "ORDER BY step, rank", (epoch,)))
    con.execute("INSERT INTO exported VALUES (?, ?)", (epoch, rows))
    con.execute("COMMIT")


def main(db, out, rows):
    os.makedirs(out, exist_ok=True)
    con = connect(db)
    epoch = 0
    while True:
        newest = con.execute("SELECT max(epoch) FROM metrics").fetchone()[0]
        if newest is not None and newest > epoch:
            export(con, epoch, out, rows)
            epoch += 1
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
