"""upload.py SRC DEST: copy a checkpoint chunk by chunk, with a checksum for each."""
import hashlib
import os
import sys

CHUNK = 4096


def main(src, dest):
    os.makedirs(dest, exist_ok=True)
    for name in sorted(os.listdir(src)):
        with open(os.path.join(src, name), "rb") as f, open(os.path.join(dest, name), "wb") as g:
            n = 0
            while block := f.read(CHUNK):
                g.write(block)
                print(f"put {name} part={n} bytes={len(block)} md5={hashlib.md5(block).hexdigest()}")
                n += 1
        print(f"done {name} parts={n}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
