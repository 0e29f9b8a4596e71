import io
import os
import threading
import time

import torch
import torch.distributed as dist


class Snapshots:
    """Every rank writes its part in the background; the first then marks the snapshot as complete."""

    def __init__(self, root):
        self.root = root
        self.rank = dist.get_rank()
        self.thread = None
        self.seconds = 0.0
        os.makedirs(root, exist_ok=True)

    def save(self, step, parts):
        self.wait()
        blob = io.BytesIO()
        torch.save(parts, blob)
        self.thread = threading.Thread(target=self._write, args=(step, blob.getvalue()), name="snapshot", daemon=True)
        self.thread.start()

    def _write(self, step, blob, chunk=1 << 19):
        t0 = time.time()
        with open(f"{self.root}/step{step}-rank{self.rank}.pt", "wb") as f:
            for i in range(0, len(blob), chunk):
                f.write(blob[i : i + chunk])
                f.flush()
                os.fsync(f.fileno())
                time.sleep(0.1)  # leave the disk to others, too
        dist.barrier()
        if self.rank == 0:
            with open(f"{self.root}/latest.tmp", "w") as f:
                f.write(str(step))
            os.replace(f"{self.root}/latest.tmp", f"{self.root}/latest")
        self.seconds = time.time() - t0

    def wait(self):
        if self.thread:
            self.thread.join()
