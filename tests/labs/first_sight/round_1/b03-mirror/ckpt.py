import io
from concurrent.futures import ThreadPoolExecutor

import requests
import torch


class AsyncCheckpointer:
    """Serialises on the caller's thread, ships to the store in the background;
    at most one checkpoint is on its way at a time."""

    def __init__(self, url):
        self.url = url
        self.session = requests.Session()
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="ckpt-io")
        self.pending = None

    def _ship(self, key, blob):
        r = self.session.put(f"{self.url}/{key}", data=blob)
        r.raise_for_status()

    def save(self, key, state):
        buf = io.BytesIO()
        torch.save(state, buf)
        self.drain()
        self.pending = self.pool.submit(self._ship, key, buf.getvalue())

    def drain(self):
        if self.pending is not None:
            self.pending.result()
            self.pending = None
