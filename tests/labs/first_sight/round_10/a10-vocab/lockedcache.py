import contextlib
import fcntl
import json
import os


@contextlib.contextmanager
def locked(path):
    """Exclusive use of a cache folder among the processes of this machine."""
    os.makedirs(path, exist_ok=True)
    fh = open(os.path.join(path, ".lock"), "w")
    fcntl.flock(fh, fcntl.LOCK_EX)
    try:
        yield path
    finally:
        fh.close()


def read(path, name):
    try:
        with open(os.path.join(path, name)) as fh:
            return json.load(fh)
    except FileNotFoundError:
        return None


def write(path, name, obj):
    tmp = os.path.join(path, name + ".new")
    with open(tmp, "w") as fh:
        json.dump(obj, fh)
    os.replace(tmp, os.path.join(path, name))
