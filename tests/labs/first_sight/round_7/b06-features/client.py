import json
import os
import socket
import time

import numpy as np
import torch

DIM = 64


class FeatureClient:
    """Connects when it is first asked, and keeps the connection."""

    def __init__(self):
        self.port = int(os.environ["FEATURE_PORT"])
        self.sock = None

    def _open(self):
        for _ in range(100):
            try:
                self.sock = socket.create_connection(("127.0.0.1", self.port))
                self.file = self.sock.makefile("rwb")
                return
            except ConnectionRefusedError:
                time.sleep(0.2)
        raise RuntimeError("feature service does not answer")

    def __call__(self, ids):
        if self.sock is None:
            self._open()
        self.file.write(json.dumps({"ids": ids}).encode() + b"\n")
        self.file.flush()
        raw = self.file.read(len(ids) * DIM * 4)
        return torch.from_numpy(np.frombuffer(raw, dtype=np.float32).reshape(len(ids), DIM).copy())
