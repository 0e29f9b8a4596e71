"""Online metrics with a report from time to time, driven by a timer so that slow steps do not delay it."""
import collections
import signal
import statistics
import threading


class Meter:
    def __init__(self, window=24000):
        self._guard = threading.Lock()
        self._values = collections.deque(maxlen=window)
        self._percentiles = []
        self._seen = 0

    def add(self, losses):
        with self._guard:
            self._values.extend(losses)
            self._seen += len(losses)
            self._percentiles = statistics.quantiles(self._values, n=100)

    def snapshot(self):
        with self._guard:
            return self._seen, list(self._percentiles)


def report_every(seconds, meter, show):
    def on_timer(signum, frame):
        seen, p = meter.snapshot()
        if p:
            show(seen, p[4], p[49], p[94])

    signal.signal(signal.SIGALRM, on_timer)
    signal.setitimer(signal.ITIMER_REAL, 8 * seconds, seconds)
