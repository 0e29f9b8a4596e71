import contextlib, fcntl, json, os


@contextlib.contextmanager
def pool_lock(path):
    fd = os.open(path + ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def load_pool(path):
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return {int(k): v for k, v in json.load(f).items()}


def merge_pool(path, losses):
    pool = load_pool(path)
    for i, v in losses.items():
        pool[i] = 0.7 * pool.get(i, v) + 0.3 * v
    with open(path + ".new", "w") as f:
        json.dump(pool, f)
    os.replace(path + ".new", path)
    return pool
