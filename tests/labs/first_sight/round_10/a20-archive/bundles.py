"""Scanned pages.  A bundle is a JSON file with strokes, or a list of parts that are bundles themselves."""
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class BundleReader:
    def __init__(self, root, threads=4, size=40):
        self.root, self.size = root, size
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")

    def _render(self, strokes):
        img = np.zeros((self.size, self.size), "float32")
        for x0, y0, x1, y1 in strokes:
            t = np.linspace(0, 1, 60)
            xs = ((x0 + (x1 - x0) * t) * (self.size - 1)).astype(int)
            ys = ((y0 + (y1 - y0) * t) * (self.size - 1)).astype(int)
            img[ys, xs] = 1.0
        return img

    def _load(self, name):
        with open(os.path.join(self.root, name)) as fh:
            doc = json.load(fh)
        if "parts" in doc:
            parts = [self.pool.submit(self._load, p) for p in doc["parts"]]
            img = np.maximum.reduce([p.result()[0] for p in parts])
        else:
            img = self._render(doc["strokes"])
        return img, doc["label"]

    def batch(self, names):
        return [self.pool.submit(self._load, n) for n in names]
