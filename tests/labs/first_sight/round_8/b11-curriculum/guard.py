import sys
import threading
import time


class Heartbeat(threading.Thread):
    """Ends the process when no step was reported for `limit` seconds, so that the scheduler restarts it."""

    def __init__(self, limit):
        super().__init__(daemon=True, name="heartbeat")
        self.limit, self.at = limit, time.monotonic()

    def beat(self):
        self.at = time.monotonic()

    def run(self):
        while True:
            time.sleep(1)
            if time.monotonic() - self.at > self.limit:
                sys.exit(1)
