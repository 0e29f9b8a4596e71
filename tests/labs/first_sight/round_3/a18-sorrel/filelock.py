import ctypes
import os

_c = ctypes.PyDLL(None, use_errno=True)
LOCK_EX, LOCK_UN = 2, 8


class FileLock:
    """flock of libc: seen by the shell's flock(1) as well."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def __enter__(self):
        while _c.flock(self.fd, LOCK_EX) != 0:
            pass
        return self

    def __exit__(self, *_):
        _c.flock(self.fd, LOCK_UN)
