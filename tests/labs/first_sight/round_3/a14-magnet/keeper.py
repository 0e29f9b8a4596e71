import io
import signal
import threading
import time

import torch


class Keeper:
    """Snapshot of the weights in memory every few seconds, for a quick way back after a spike."""

    def __init__(self, model, every):
        self.model = model
        self.guard = threading.Lock()
        self.snap = None
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, 25, every)

    def _on_alarm(self, *_):
        with self.guard:
            buf = io.BytesIO()
            torch.save(self.model.state_dict(), buf)
            self.snap = (time.time(), buf.getvalue())

    def update(self, opt, scale):
        with self.guard:  # no snapshot of half an update
            for group in opt.param_groups:
                for p in group["params"]:
                    p.grad.mul_(scale)
            opt.step()
            time.sleep(0.12)  # offloaded state comes and goes
