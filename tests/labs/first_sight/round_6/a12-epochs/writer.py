import csv
import queue
import time


def run(inbox, epoch_end, path, idle=4.0):
    """Metrics of all ranks come through a queue and go to one CSV file.

    At the end of an epoch ranks and writer meet, so that the file is whole
    when the next epoch begins.
    """
    with open(path, "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["time", "rank", "epoch", "step", "loss"])
        pending = 0
        inbox.get()  # the first rank is up
        while True:
            try:
                msg = inbox.get(timeout=idle)
            except queue.Empty:
                return  # the ranks are gone
            if msg[0] == "epoch":
                pending += 1
                if pending == epoch_end.parties - 1:
                    pending = 0
                    f.flush()
                    epoch_end.wait()
            elif msg[0] == "stop":
                return
            else:
                out.writerow([f"{time.time():.2f}", *msg[1:]])
