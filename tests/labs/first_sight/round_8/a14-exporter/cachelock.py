import contextlib
import fcntl


@contextlib.contextmanager
def node_lock(path):
    """One process of the node at a time."""
    with open(path, "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield
