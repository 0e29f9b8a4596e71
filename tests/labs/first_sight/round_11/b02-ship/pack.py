"""Compresses a segment, then checks what is packed so far, line by line."""
import gzip
import hashlib
import sys
from pathlib import Path

path = Path(sys.argv[1])
packed = path.with_suffix(".log.gz")
packed.write_bytes(gzip.compress(path.read_bytes()))
path.unlink()
for p in sorted(path.parent.glob("segment_*.gz")):
    for i, line in enumerate(gzip.decompress(p.read_bytes()).splitlines()):
        print(f"verified {p.name}:{i:05d} sha256={hashlib.sha256(line).hexdigest()} {len(line):4d} bytes")
