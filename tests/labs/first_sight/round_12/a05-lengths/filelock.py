import os
import time
from contextlib import contextmanager


@contextmanager
def exclusive(path, poll=0.5):
    while True:
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            break
        except FileExistsError:
            time.sleep(poll)
    os.write(fd, f"pid {os.getpid()}\n".encode())
    os.close(fd)
    try:
        yield
    finally:
        os.unlink(path)
