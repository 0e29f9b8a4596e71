"""The forms in which programs, shells, schedulers and drivers print what went wrong."""

from __future__ import annotations

import re

from diag.knowledge.tracebacks import OF_LAUNCHER

# One of these is in each line that can be a claim, or that is of a traceback.
MAY = re.compile(
    r"rror|received by PID|nccl|segfault|xception|Interrupt|Exit"
    r"|Traceback|File \"|ERROR|FATAL|CRITICAL|WARN|Fatal|fatal|illed|fault|bort|Assertion"
    r"|terminate called|free|malloc|corrupt|stack smashing|not found|No such|denied|unbound|not set$|CANCELLED|Failed|EVICTED|Command '"
    r"|Call stack|[A-Za-z_.]{3,80}: |(?:eceiv|ot |aught ).{0,30}(?:SIG|ignal)"
)
CLASS = r"(?:[A-Za-z_]\w{0,100}\.){0,12}[A-Za-z_]\w{0,100}"
# CPython 3.8-3.14 below frames, whatever its name is; elsewhere by the usual endings.
RAISED = re.compile(rf"({CLASS})(?:: (.*)|:?$)")
NAMED = re.compile(
    r"((?:\w{1,100}\.){0,12}[A-Z]\w{0,100}(?:Error|Exception|Interrupt|Exit|Timeout))(?:: (.*)|:?$)"
)
# The same as a module's, whose name is its own:   http.client.IncompleteRead: IncompleteRead(4835 bytes read, 5405 more expected)
OF_MODULE = re.compile(r"((?:[a-z_]\w{0,100}\.){1,12}[A-Z]\w{0,100})(?:: (.*)|:$)")
# A line that is an exception's repr, as Hydra 1.1-1.3 prints the cause of what it could not instantiate:
#   TypeError("Adam.__init__() missing 1 required positional argument: 'params'")
REPR = re.compile(
    r"\s{0,12}((?:\w{1,100}\.){0,12}[A-Z]\w{0,100}(?:Error|Exception))\((?:'[^\n]{3,2000}'|\"[^\n]{3,2000}\"),?\)$"
)
# A line of source, as warnings quote it:   torch.distributed.distributed_c10d._set_pg_timeout(timeout, group)
SOURCE = re.compile(
    r"\s*(?:[\w.]{1,200}(?: = [\w.]{1,200})?\(.*[)(],?|(?:return|raise|with|if|for|assert) .*)$"
)
FILE = re.compile(r'\s*(?:\| {1,3})?File "([^"\n]{1,400})", line (\d{1,7})(?:, in (\S{1,200}))?')
# Around the exception that a worker raised, its parent's (ray 2.x, multiprocessing, concurrent.futures, torch 1.9-2.13):
WRAPPERS = (
    *OF_LAUNCHER,
    "RayTaskError",
    "RemoteTraceback",
    "RemoteError",
    "SystemExit",
    "KeyboardInterrupt",
)
DIRECT = "The above exception was the direct cause"
# Slurm 20-24, Open MPI 4-5, PBS and LSF; kubelet's words:
#   srun: PrologSlurmctld failed, job killed
#   slurmstepd: error: *** STEP 1234.0 ON gpu-17 CANCELLED AT 2026-11-20T22:48:19 DUE TO TIME LIMIT ***
#   srun: error: gpu-17: task 3: Segmentation fault         mpirun noticed that process rank 3 with PID 0 on node gpu-17 exited on ...
SCHEDULER = re.compile(
    r"(?:srun|slurmstepd|sbatch|salloc|mpirun|mpiexec|prterun|prte|orterun|qsub|bsub)(?:\[\d+\])?: (?:error|fatal|\w{1,40} failed, )"
    r"|(?:mpirun|prterun) noticed"
    r"|.{0,80}CANCELLED AT|TERM_(?:MEMLIMIT|RUNLIMIT|OWNER)|=>> PBS: job killed|.{0,80}\b(?:OOMKilled|Evicted|FailedScheduling)\b"
)
# NCCL 2.4-2.32 by torch's words; CANN 6-8 (EI0002, EJ0001, ERR02200):
ACCELERATOR = re.compile(
    r"nccl[A-Z]\w{3,40}: |.{0,400}\bnvidia-container-cli: \w{4,20} error: "
    r"|(?:.{0,60}[\s\[(])?(?:E[A-Z]\d{4}|ERR\d{5})[\]): ]|.{0,80}\bHCCL\b.{0,80}(?:rror|ailed)"
)
# What NCCL 2.18-2.28 says of its proxy's connections while the processes at their other ends go away, after a failure or at
# the end of all work:
#   proxy.cc:1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable
#   proxy.cc:1497 NCCL WARN [Service thread] Could not receive type from localRank 1, res=3, closed=0
#   proxy.cc:1521 NCCL WARN [Proxy Service 1] Failed to execute operation Close from rank 1, retcode 3
CLOSING = re.compile(
    r"\[Service thread\] (?:Accept failed|Could not receive )|Failed to execute operation Close\b"
)
# bash 4-5, dash; argparse; what compilers, linkers and most commands print:
#   train.sh: line 12: torchrun: command not found      train.py: error: unrecognized arguments: --lora_rnak 8
OTHER = re.compile(
    r"\S{1,200}: (?:(?:line )?\d{1,7}: )?(?:\S{1,200}: )?(?:command not found|No such file or directory|Permission denied"
    r"|not found|unbound variable|parameter not set)$"
    r"|(?:[\w./+-]{1,200}(?::\d{1,7}){0,2}: )?(?:fatal )?(?:error|Error|ERROR|FATAL|Fatal)\b ?:.{3}|.{0,40}\bException: "
)
# A shell reads no further than this (bash 4-5, dash 0.5):
#   slurm_script: line 98: syntax error: unexpected end of file       job.sh: 12: Syntax error: "fi" unexpected
UNREAD = re.compile(
    r"\S{1,300}: (?:line )?\d{1,7}: (?:[sS]yntax error\b|unexpected EOF while)|\S{1,300}: error reading input file: "
)
MISSING = re.compile(r": (?:command not found|No such file or directory|Permission denied|not found)$")
# torch 1.10-2.13, the launcher's table of failures; kernel, in a log of the node:
#   Program received signal SIGSEGV: Segmentation fault - invalid memory reference.    (gfortran 8-14; Intel: forrtl: severe (174))
SIGNALLED = re.compile(
    r"Signal \d{1,2} \(SIG[A-Z]{3,6}\) received by PID|\bsegfault at [0-9a-f]{1,16} ip "
    r"|^Program received signal SIG|^forrtl: severe|\*\*\* Process received signal \*\*\*"
)
# Who started a program reports that it failed, and no more (CPython 3.8-3.14 subprocess; GNU make 4):
#   Command '['flower-simulation', '--app', '.']' returned non-zero exit status 1.       make: *** [Makefile:12: train] Error 1
EXITED = re.compile(
    r"\breturned non-zero exit status [1-9]\d{0,2}\.?$|^make(?:\[\d{1,3}\])?: \*\*\* .{1,300}\bError [1-9]\d{0,2}$"
)
# In a paste of a few lines any word of failure is worth showing (docker 28, kubelet 1.31, OpenSSH 9.2, nvidia-smi 575):
#   exec /usr/bin/bash: exec format error        ssh: Could not resolve hostname node2: Name or service not known
FAILING = re.compile(
    r"(?i)(?<!\bno )(?<!\b0 )\b(?:fail(?:ed|ure|s|ing)?|errors?|denied|refused|unreachable|timed? ?out|cannot|can't|could not"
    r"|unable|not (?:found|permitted|supported|available|known)|no such|read-only file system"
    r"|no devices|mismatch(?:ed)?|lost|killed|out of memory"
    r"|corrupt(?:ed)?|invalid|illegal|unsupported|unknown|abort(?:ed|ing)?|crash(?:ed)?|panic|exceed(?:s|ed)|insufficient)\b"
    r"|(?<!无)(?<!没有)(?:错误|异常|失败|报错|崩溃)|无法|未找到|不存在|拒绝"
)
FEW_LINES = 20
KINDS = (
    (SCHEDULER, "scheduler"),
    (ACCELERATOR, "accelerator"),
    (UNREAD, "other"),
    (OTHER, "other"),
)
# gdb 9-15 on a signal that the user sent, and the frames that `bt` prints below it:
#   Thread 1 "zello_hang" received signal SIGINT, Interrupt.
#   #2  0x00007ffff7f15b6e in zeEventHostSynchronize (hEvent=0x5555558fcbe0, timeout=18446744073709551615) at /src/libapi.cpp:2277
INTERRUPTED_IN_DEBUGGER = re.compile(r"(?:Thread .{1,120}|Program )received signal SIGINT, Interrupt\.")
NATIVE_FRAME = re.compile(
    r"#\d{1,3}  ?(?:0x[0-9a-f]{1,16} in )?(?P<name>[^\s(]{1,200}(?:\([^()]{0,200}\))?) \(.*?\)"
    r"(?: from \S{1,300}| at (?P<file>\S{1,300}):(?P<line>\d{1,7}))?$"
)
# kubectl describe of Kubernetes 1.2x, whoever the event is from: it says itself that it is a warning.
#   Warning  Pending  10s   kueue-admission  couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor ...
#   Warning  ErrWorkloadCompose  14s   pod-kueue-controller  'my-pod-group' group has fewer runnable pods than expected
WARNING_EVENT = re.compile(
    r"\s{0,20}Warning {1,20}[A-Z][A-Za-z]{2,60} {1,40}(?:<unknown>|\d{1,5}[smhd]\w{0,12}(?: \(x\d{1,7} over \w{1,12}\))?)"
    r" {1,20}[\w.-]{1,80}(?:, \S{1,80})? {1,40}\S"
)
# asyncio of CPython 3.8-3.14, of a task whose exception nobody took: the program goes on.
NOBODY_TOOK = "never retrieved"
# pyxis 0.9-0.20 hands on what enroot wrote, line by line:
#   slurmstepd: error: pyxis: container start failed with error code: 1
#   slurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory
REPORT_OF_LINES = re.compile(r"(?:\d{1,6}: )?slurmstepd: error: pyxis: ")
KERNEL_WAITS = re.compile(
    r"^_*(?:libc_)?(?:sched_yield|poll|ppoll|epoll_\w+|select|pselect|futex\w*|nanosleep|clock_nanosleep|read|recv\w*|syscall\w*|pthread_cond_\w+|lll_lock_wait)"
)
