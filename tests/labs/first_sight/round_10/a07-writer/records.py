"""Writes scores and predictions to disk in a process of its own, so that a slow disk does not slow the loop."""
import json
import multiprocessing as mp
import os


def _serve(queue, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "scores.jsonl"), "w") as scores, \
            open(os.path.join(folder, "predictions.jsonl"), "w") as preds:
        while True:
            item = queue.get()
            if item is None:
                return
            kind, payload = item
            out = scores if kind == "score" else preds
            out.write(json.dumps(payload, allow_nan=False) + "\n")
            out.flush()


class Recorder:
    def __init__(self, folder):
        ctx = mp.get_context("spawn")
        self.queue = ctx.Queue()
        self.proc = ctx.Process(target=_serve, args=(self.queue, folder), name="recorder")
        self.proc.start()

    def score(self, **kw):
        self.queue.put(("score", kw))

    def predictions(self, step, values):
        self.queue.put(("pred", {"step": step, "values": [round(v, 5) for v in values]}))

    def close(self):
        self.queue.put(None)
        self.proc.join()
