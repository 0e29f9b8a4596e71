import json
import queue
from concurrent.futures import ThreadPoolExecutor

_END = object()


class ShardReader:
    """Reads several shards at once and hands out records as they come."""

    def __init__(self, files, threads=2, depth=64):
        self.files = list(files)
        self.threads = threads
        self.depth = depth

    def _read(self, path, out):
        with open(path, encoding="utf-8") as f:
            for line in f:
                rec = json.loads(line)
                out.put((rec["ids"], rec["label"]))
        out.put(_END)

    def __iter__(self):
        out = queue.Queue(self.depth)
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="reader")
        for path in self.files:
            pool.submit(self._read, path, out)
        left = len(self.files)
        while left:
            item = out.get()
            if item is _END:
                left -= 1
                continue
            yield item
        pool.shutdown(wait=False)
