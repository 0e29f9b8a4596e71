"""Stand-in for the remote judge: same quota as the hosted one."""
import hashlib
import time


class Judge:
    def __init__(self, per_minute):
        self.gap = 60.0 / per_minute
        self.next_slot = time.monotonic()

    def prefers(self, prompt, answer):
        wait = self.next_slot - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self.next_slot = time.monotonic() + self.gap
        digest = hashlib.sha256(bytes(prompt) + bytes(answer)).digest()
        return digest[0] % 2
