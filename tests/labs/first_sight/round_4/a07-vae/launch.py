"""Start N ranks on this machine and show their output, each line with the rank in front."""
import os
import signal
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    cut = sys.argv.index("--")
    n = int(sys.argv[sys.argv.index("--ranks") + 1])
    script = sys.argv[cut + 1:]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(n),
               OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    procs = []
    for rank in range(n):
        procs.append(subprocess.Popen([sys.executable, *script], env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank)),
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    signal.signal(signal.SIGTERM, lambda *_: [p.terminate() for p in procs] and sys.exit(143))
    code = 0
    for rank, proc in enumerate(procs):
        for line in proc.stdout:
            print(f"{rank}: {line}", end="", flush=True)
        code = proc.wait() or code
    return code


if __name__ == "__main__":
    sys.exit(main())
