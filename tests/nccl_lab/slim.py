"""Empties the code of all GPU architectures but one in a libnccl.so.2, offsets kept: it loads, and compresses
to a tenth.

python slim.py libnccl.so.2 small.so 90
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

_MAGIC = 0xBA55ED50
_CUBIN = 2


def sections(image: bytearray) -> Iterator[tuple[str, int, int]]:
    """(name, offset, size) of an ELF64's sections."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * entry) for i in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        yield image[start : image.index(b"\0", start)].decode(), header[4], header[5]


def main() -> None:
    source, target, architecture = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    image = bytearray(source.read_bytes())
    for name, offset, size in list(sections(image)):
        if name == "__nv_relfatbin":
            image[offset : offset + size] = bytes(size)
        if name != ".nv_fatbin":
            continue
        at = offset
        while at < offset + size:
            magic, _, head, length = struct.unpack_from("<IHHQ", image, at)
            if magic != _MAGIC:
                at += 8  # padding between binaries
                continue
            entry = at + head
            at = entry + length
            while entry < at:
                kind, _, head, length = struct.unpack_from("<HHIQ", image, entry)
                (built_for,) = struct.unpack_from("<I", image, entry + 28)
                if (kind, built_for) != (_CUBIN, architecture):
                    image[entry + head : entry + head + length] = bytes(length)
                entry += head + length
    target.write_bytes(image)


if __name__ == "__main__":
    main()
