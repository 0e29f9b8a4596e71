import functools
import time

import torch.distributed as dist


class Rally:
    """A barrier over the store: cheap, and needs no collective while a checkpoint is under way."""

    def __init__(self, name):
        self.store = dist.distributed_c10d._get_default_store()
        self.world, self.name = dist.get_world_size(), name

    def arrive(self, tag):
        self.store.add(f"{self.name}/{tag}", 1)

    def wait(self, tag):
        while self.store.add(f"{self.name}/{tag}", 0) != self.world:
            time.sleep(0.02)


def attempts(n, errors=(OSError,)):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            for k in range(n):
                try:
                    return fn(*args, **kwargs)
                except errors as e:
                    if k == n - 1:
                        raise
                    print(f"{fn.__name__}: {e}; trying again", flush=True)
                    time.sleep(0.5)
        return inner
    return wrap
