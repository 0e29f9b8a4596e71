"""Lines in which a launcher or the shell says that a process failed, beside torchelastic's (torch_log)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diag.model.observations import Observation, WorkerFailureReported

# DeepSpeed 0.9-0.18, launcher/launch.py, the command of the process that failed, with its LOCAL rank (one
# node: the rank):
#   [2023-05-12 07:24:57,912] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=3', ...]
#   exits with return code = 1
_DEEPSPEED = re.compile(
    r":sigkill_handler\] \[.{0,8000}--local_rank=(\d{1,6}).{0,8000}\] exits with return code = (-?\d{1,5})"
)
# Slurm 20-25, srun's own (huggingface and ParlAI reports):
#   srun: error: gpu-17: task 14: Exited with exit code 1
#   srun: error: gpu-17: task 3: Killed                     srun: error: gpu-17: task 0: Segmentation fault (core dumped)
_SRUN = re.compile(
    r"srun: error: [\w.-]{1,253}: task (\d{1,7}): "
    r"(?:Exited with exit code (\d{1,3})|(Killed|Segmentation fault|Aborted|Bus error))"
)
# Open MPI 1.8-5.0:   mpirun noticed that process rank 1 with PID 4711 on node gpu-17 exited on signal 9 (Killed).
_MPI = re.compile(
    r"(?:mpirun|mpiexec|prterun) noticed that process rank (\d{1,7}) with PID (\d{1,9}) on node \S{1,253} "
    r"exited on signal (\d{1,3})"
)
_SIGNALS = {"Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7}
WORDS = ("exits with return code", "srun: error", "noticed that process rank")


def read_line(text: str) -> Iterator[Observation]:
    """`exit_code` negative for signals, as torchelastic says it; pid 0 where it is not told."""
    if "exits with return code = " in text:
        if match := _DEEPSPEED.search(text):
            yield WorkerFailureReported(int(match[1]), int(match[2]), 0, text.strip()[:300])
    elif "srun: error: " in text:
        match = _SRUN.search(text)
        if match and (match[2] is None or int(match[2])):
            code = int(match[2]) if match[2] else -_SIGNALS[match[3]]
            yield WorkerFailureReported(
                int(match[1]), code - 256 if code > 256 else code, 0, text.strip()[:300]
            )
    elif " noticed that process rank " in text and (match := _MPI.search(text)):
        yield WorkerFailureReported(int(match[1]), -int(match[3]), int(match[2]), text.strip()[:300])
