"""Starts the ranks of one machine: rank 0 is shown live, the others go to files when it is through."""
import os
import socket
import subprocess
import sys

WORLD = 2


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(WORLD))
    ranks = []
    for rank in range(WORLD):
        ranks.append(subprocess.Popen(
            [sys.executable, "train.py", *sys.argv[1:]],
            env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for line in ranks[0].stdout:
        print(line, end="", flush=True)
    code = ranks[0].wait()
    for rank, process in enumerate(ranks[1:], 1):
        out, _ = process.communicate()
        with open(f"rank{rank}.log", "w") as f:
            f.write(out)
        code = code or process.returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
