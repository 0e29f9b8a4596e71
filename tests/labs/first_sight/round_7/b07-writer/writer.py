"""Checkpoints are written by a process of their own; it answers with a manifest of what it wrote."""
import hashlib
import io
import multiprocessing as mp
import os

import torch


def _serve(folder, inbox, outbox):
    while True:
        job = inbox.get()
        if job is None:
            break
        step, state = job
        buf = io.BytesIO()
        torch.save({k: torch.from_numpy(v) for k, v in state.items()}, buf)
        data = buf.getvalue()
        with open(os.path.join(folder, f"step{step:05d}.pt"), "wb") as f:
            f.write(data)
        chunks = [hashlib.sha1(data[i:i + 256]).hexdigest() for i in range(0, len(data), 256)]
        outbox.put({"step": step, "bytes": len(data), "chunks": chunks})


class Writer:
    def __init__(self, folder):
        ctx = mp.get_context("spawn")
        self.inbox, self.outbox = ctx.Queue(), ctx.Queue()
        self.process = ctx.Process(target=_serve, args=(folder, self.inbox, self.outbox))
        self.process.start()

    def save(self, step, model):
        self.inbox.put((step, {k: v.numpy().copy() for k, v in model.state_dict().items()}))

    def close(self):
        self.inbox.put(None)
        self.process.join()
        manifest = []
        while not self.outbox.empty():
            manifest.append(self.outbox.get())
        return manifest
