import time


class PowerGovernor:
    """The rack allows a burst of work per window; the rest of the window is spent idle."""

    def __init__(self, window, burst):
        self.window, self.burst = window, burst
        self.start = time.monotonic()

    def pace(self):
        used = time.monotonic() - self.start
        if used >= self.burst:
            time.sleep(max(0.0, self.window - used))
            self.start = time.monotonic()
            return True
        return False
