"""The lines of Python tracebacks in logs (CPython 3.8-3.14)."""

from __future__ import annotations

import re

# torch's own hook for uncaught exceptions (torch 2.4-2.13) writes the rank before each line:
#   [rank1]: Traceback (most recent call last):
#   [rank1]:   File "/app/train.py", line 3, in main
#   [rank1]: ValueError: --tensor_model_parallel_size 3 does not divide 16 heads
PREFIX = re.compile(r"^\[rank\d{1,6}\]: ?")
FRAME = re.compile(r'\s{0,12}(?:\| {1,3})?File "[^"\n]{1,400}", line \d{1,7}')
# and what it names
PLACE = re.compile(r'File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7}), in (?P<function>\S{1,200})')
# Above the traceback of an exception that ends nothing; multiprocessing and concurrent.futures pass theirs on:
#   Exception ignored in: <function ...>        --- Logging error ---        Error in atexit._run_exitfuncs:
NOT_ITS_END = re.compile(
    r"Exception (?:in thread|ignored)|--- Logging error ---|Error in atexit\._run_exitfuncs:"
)
# logging's own word below that traceback: the frames that follow are those of the call, of which nothing was raised.
CALL_STACK = "Call stack:"
# What launchers die of themselves when a worker of theirs did (torch 1.9-2.13; accelerate, swift and bare
# scripts around it):
#   torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
#   subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' returned non-zero exit status 1.
#   torch.multiprocessing.spawn.ProcessRaisedException:  /  ProcessExitedException: process 1 terminated with signal SIGKILL
OF_LAUNCHER = ("ChildFailedError", "subprocess.CalledProcessError", "torch.multiprocessing.spawn.Process")
# An exception behind what an unknown tool puts before each line: words in brackets or with a colon, a bar, blanks.
#       x3202c0s31b0n0: AssertionError: Micro batch size per gpu: 0 has to be greater than 0
_BEHIND = re.compile(
    r"(?:\s{0,12}(?!(?i:warn|info|debug|note|retry|caught|ignor|skip|got|expect))[\w./@#<\[(-][^\s]{0,80}?[:\]|>)]{1,2}\s{1,4}){1,3}"
    r"((?:\w{1,100}\.){0,12}[A-Z]\w{0,100}(?:Error|Exception|Interrupt)(?::|$).*)"
)
CHAIN = "above exception"  # in the line between two exceptions, of which the second was raised while the first was handled
# A process that native code ended, by its own or the shell's last line: signal.
#   Fatal Python error: Segmentation fault        (faulthandler, CPython 3.10-3.13)
#   terminate called after throwing an instance of 'c10::DistBackendError'      (libstdc++: SIGABRT)
#   train.sh: line 12: 20342 Killed                  python train.py     (bash 5)
ENDED = re.compile(
    r"^(?:\[rank\d{1,6}\]: ?)?(?:"
    r"Fatal Python error: (Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception)"
    r"|(terminate called (?:after throwing|without an active))"
    r"|(?:\S{1,200}: line \d{1,7}: {1,3}\d{1,9} )?(Killed|Segmentation fault|Bus error|Aborted)(?: {1,9}\(core dumped\))?"
    r"(?: {2,40}\S.*)?$)"
)
# What the handlers of UCX 1.6-1.18 and Open MPI 4-5 print of a process that crashed:
#   [gpu-17:227  :0:227] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x28)
#   [nid006549:31808] Signal: Segmentation fault (11)
CRASHED = re.compile(
    r"\[[\w.-]{1,253}:[\d: ]{1,40}\] (?:Caught signal \d{1,2} \(|Signal: )"
    r"(?:Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point)"
)
# A scheduler's own word that it ended a step or job: what follows is how it is taken down. Slurm 17-24, LSF 10.1, PBS:
#   slurmstepd: error: *** STEP 1809577.0 ON r6i5n1 CANCELLED AT 2021-05-23T08:46:02 ***
#   slurmstepd: error: *** JOB 4711 ON gpu-17 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***
BY_SCHEDULER = re.compile(
    r"\*\*\* (?:JOB|STEP) [\d._+]{1,30} ON [\w.-]{1,120} CANCELLED AT |TERM_(?:MEMLIMIT|RUNLIMIT|OWNER): job killed|=>> PBS: job killed"
)
# A process says which signal it was sent: nothing in it failed (Lightning 2, DeepSpeed 0.10, torch 1.9-2.13, gunicorn):
#   [rank: 2] Received SIGTERM: 15        Received 15 death signal, shutting down workers       Got signal 15, exiting
#   Detected KeyboardInterrupt, attempting graceful shutdown ...
#   FatalError: `Termination signal` is detected by the operating system.      (Paddle 2.0-3.0)
ASKED_TO_END = re.compile(
    r"(?i)\b(?:received|receiving|got|caught|detected)(?: an?| the)?[ :]{1,2}"
    r"(?:(?:signal[ :=(]{1,3})?(sigterm|sigint|sighup|sigquit|sigxcpu|keyboardinterrupt)\b"
    r"|signal[ :=]{1,3}(15|2|1)\b|(15|2|1) (?:death |termination )?signal\b)"
    r"|`(termination signal)` is detected"
)
SIGNALS = {"Segmentation fault": 11, "Bus error": 7, "Aborted": 6, "Illegal instruction": 4, "Floating point exception": 8,
            "Killed": 9}  # fmt: skip


def behind_prefix(text: str) -> str:
    """The exception that a line names behind an unknown prefix; "" where it names none.

    >>> behind_prefix("  n0: ValueError: no"), behind_prefix("caught: ValueError: no"), behind_prefix("a ValueError: no")
    ('ValueError: no', '', '')
    """
    match = _BEHIND.match(text[:600])
    return text[match.start(1) :] if match else ""
