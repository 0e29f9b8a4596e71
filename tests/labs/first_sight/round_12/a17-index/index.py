import os
import threading
import time

_guard = threading.Lock()
_offsets = []
_loaded = 0


def _read(path):
    rows = []
    with open(path) as f:
        for n, line in enumerate(f):
            rows.append(int(line))
            if n % 200 == 199:
                time.sleep(0.1)  # be gentle to the filer
    return rows


def _refresh(paths, begun):
    global _loaded
    with _guard:
        begun.set()
        for path in paths:
            _offsets.extend(_read(path))
        _loaded += len(paths)


def refresh(rank, epoch):
    """Takes in the segments that have been published for this epoch, in the background."""
    folder = f"segments/rank{rank}"
    paths = sorted(os.path.join(folder, n) for n in os.listdir(folder) if int(n.split("-")[1].split(".")[0]) == epoch)
    if not paths:
        return
    begun = threading.Event()
    threading.Thread(target=_refresh, args=(paths, begun), daemon=True).start()
    begun.wait()


def lookup(i):
    with _guard:
        return _offsets[i % len(_offsets)]


def size():
    with _guard:
        return len(_offsets)
