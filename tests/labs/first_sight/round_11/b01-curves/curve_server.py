"""Keeps the curves of a project: one row in, one `ok` out, each row on disk before it is acknowledged."""
import os
import socket
import sys
import time

os.makedirs("curves", exist_ok=True)
out = open(f"curves/{sys.argv[1]}.jsonl", "a")
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
print(s.getsockname()[1], flush=True)
conn, _ = s.accept()
for line in conn.makefile("r"):
    out.write(line)
    out.flush()
    os.fsync(out.fileno())
    time.sleep(0.008)  # 120 rows a second, as the hosted one
    conn.sendall(b"ok\n")
