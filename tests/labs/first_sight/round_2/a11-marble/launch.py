import os
import socket
import subprocess
import sys

import store


def main(world=2):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, SHARDS=store.serve(), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
               WORLD_SIZE=str(world), PYTHONUNBUFFERED="1")
    ranks = [subprocess.Popen([sys.executable, "train.py"], env=dict(env, RANK=str(r), LOCAL_RANK=str(r)))
             for r in range(world)]
    sys.exit(max(p.wait() for p in ranks))


if __name__ == "__main__":
    main()
