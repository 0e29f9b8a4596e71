import time


class TimeBudget:
    """Ends the run before the queue's wall-clock limit would."""

    def __init__(self, seconds):
        self.deadline = time.monotonic() + seconds

    def exhausted(self):
        return time.monotonic() >= self.deadline
