"""Word ids in a file which grows; shared by the training loop, the loader and the status thread."""
import os
import threading


class Lexicon:
    def __init__(self, path):
        self.path = path
        self.lock = threading.Lock()
        self.ids, self.stamp = {}, None
        self.refresh()

    def current(self):
        return self.stamp == os.stat(self.path).st_size

    def refresh(self):
        with open(self.path) as f:
            self.ids = {w: i + 1 for i, w in enumerate(f.read().split())}
            self.stamp = f.tell()

    def __getitem__(self, word):
        with self.lock:
            return self.ids.get(word, 0)

    def __len__(self):
        with self.lock:
            return len(self.ids)

    def append(self, words):
        with self.lock, open(self.path, "a") as f:
            f.write("".join(w + "\n" for w in words))
