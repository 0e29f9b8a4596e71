"""Start one process per rank on this host, show rank 0, keep the others' output for the archive."""
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
    port = free_port()
    procs = []
    for rank in range(WORLD):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PYTHONUNBUFFERED="1")
        procs.append(subprocess.Popen([sys.executable, "train.py", *sys.argv[1:]], env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    os.makedirs("logs", exist_ok=True)
    with open("logs/rank0.log", "w") as f:
        for line in procs[0].stdout:
            f.write(line)
            if not line.startswith("WARN"):
                sys.stdout.write(line)
                sys.stdout.flush()
    code = procs[0].wait()
    for rank, p in enumerate(procs[1:], 1):
        out, _ = p.communicate()
        with open(f"logs/rank{rank}.log", "w") as f:
            f.write(out)
        code = code or p.returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
