"""srun for a workstation: srun_like.py -n N COMMAND ... sets what Slurm would."""
import os
import signal
import socket
import subprocess
import sys

n = int(sys.argv[2])
command = sys.argv[3:]
s = socket.socket()
s.bind(("127.0.0.1", 0))
port = s.getsockname()[1]
s.close()
tasks = []
for i in range(n):
    env = dict(os.environ, SLURM_PROCID=str(i), SLURM_NTASKS=str(n), SLURM_LOCALID=str(i),
               SLURM_NODEID="0", SLURM_JOB_NUM_NODES="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    tasks.append(subprocess.Popen(command, env=env))
signal.signal(signal.SIGTERM, lambda *a: [t.terminate() for t in tasks])
sys.exit(max(abs(t.wait()) for t in tasks))
