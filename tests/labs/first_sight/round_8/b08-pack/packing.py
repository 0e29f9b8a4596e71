import ctypes
import multiprocessing as mp
import struct

import numpy as np

ROW = struct.Struct("<QI")


class Blob:
    """One file of tokens and an index of (offset, length) for each document."""

    def __init__(self, docs, seed=9):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(20, 200, docs)
        self.tokens = rng.integers(0, 900, int(lengths.sum()), dtype=np.int32)
        starts = np.concatenate([[0], lengths.cumsum()[:-1]])
        self.index = bytearray(b"".join(ROW.pack(int(s), int(n)) for s, n in zip(starts, lengths)))

    def repair(self, doc, raw):
        self.index[doc * ROW.size:(doc + 1) * ROW.size] = raw

    def __len__(self):
        return len(self.index) // ROW.size

    def copy_into(self, target, used, doc):
        start, n = ROW.unpack_from(self.index, doc * ROW.size)
        n = min(n, len(target) - used)
        ctypes.memmove(target.ctypes.data + 4 * used, self.tokens.ctypes.data + 4 * start, 4 * n)
        return n


_blob = None


def _init(blob):
    global _blob
    _blob = blob


def _pack(span):
    rows, row, used = [], np.zeros(512, np.int32), 0
    for doc in span:
        used += _blob.copy_into(row, used, doc)
        if used >= 512:
            rows.append(row)
            row, used = np.zeros(512, np.int32), 0
    np.sort(np.random.default_rng(0).standard_normal(3_000_000))
    return rows


def pack_all(blob, num_proc=2, span=60, tell=print):
    spans = [range(i, min(i + span, len(blob))) for i in range(0, len(blob), span)]
    done, rows = 0, []
    with mp.get_context("fork").Pool(num_proc, _init, (blob,)) as pool:
        for part in pool.imap(_pack, spans):
            rows += part
            done += 1
            tell(f"Packing: {100 * done // len(spans):3d}%|{'█' * (20 * done // len(spans)):20}| {done}/{len(spans)}")
    return np.stack(rows)
