import ctypes

_lib = ctypes.CDLL("./libngram.so")
_lib.ng_new.restype = ctypes.c_void_p
_lib.ng_add.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
_lib.ng_used.argtypes = [ctypes.c_void_p]


class Overlap:
    """Counts n-grams seen so far; `add` gives the share of a row seen before."""

    def __init__(self, n=4, bits=15):
        self.n, self.t = n, _lib.ng_new(bits)

    def add(self, row):
        row = row.contiguous()
        total = row.numel() - self.n + 1
        return _lib.ng_add(self.t, row.data_ptr(), row.numel(), self.n) / total
