"""A ring of fixed slots between a decoder process and its trainer, with the C library's semaphores."""
import ctypes
import mmap
import os

libc = ctypes.CDLL(None, use_errno=True)
SEM = 32


class Ring:
    def __init__(self, slots, size):
        self.slots, self.size = slots, size
        self.mem = mmap.mmap(-1, 2 * SEM + slots * size)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.mem))
        self.free, self.filled = ctypes.c_void_p(base), ctypes.c_void_p(base + SEM)
        libc.sem_init(self.free, 1, slots)
        libc.sem_init(self.filled, 1, 0)
        self.at = 0

    def _wait(self, sem):
        while libc.sem_wait(sem) != 0:
            if ctypes.get_errno() != 4:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _slot(self):
        off = 2 * SEM + (self.at % self.slots) * self.size
        self.at += 1
        return off

    def put(self, data):
        self._wait(self.free)
        off = self._slot()
        self.mem[off:off + len(data)] = data
        libc.sem_post(self.filled)

    def take(self):
        self._wait(self.filled)
        off = self._slot()
        return memoryview(self.mem)[off:off + self.size]

    def release(self):
        libc.sem_post(self.free)
