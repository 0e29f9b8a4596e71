"""Lines that say by themselves what happened, one fact each: numbers that went wrong (fp16 overflows, nan and
inf), processes that failed as their launchers report it, timeouts of torch's NCCL watchdog,
failed tries to reach the store, versions.

Each form is a word that every such line holds, its pattern, and the fact it makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from diag.model import observations as facts

Fact = facts.Observation | None


class Form(NamedTuple):
    word: str
    pattern: re.Pattern[str]
    fact: Callable[[re.Match[str], int | None], Fact]


def _excerpt(match: re.Match[str]) -> str:
    return match.string.strip()[:300]


# --- numbers

# DeepSpeed 0.9-0.16, runtime/fp16/loss_scaler.py (source; logs of users), rank 0 only:
#   [2023-08-02 00:41:17,526] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted
#   loss scale: 4294967296, reducing to 2147483648
#   ... [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, but hysteresis is 2. Reducing
#   hysteresis to 1
# DeepSpeed before 0.6: [deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 262144, reducing to
# 262144 Bare (bf16 or fp32 with the overflow check): [deepspeed] OVERFLOW! Rank 0 Skipping step.
_OVERFLOW = re.compile(
    r"OVERFLOW! Rank \d{1,7} Skipping step\.(?:.{0,80}?[Rr]educing (?:loss scale )?to (\d{1,20}(?:\.\d{1,6})?))?"
)
# The same file, an exception of every rank: Current loss scale already at minimum - cannot decrease scale
# anymore. Exiting run.
_MINIMUM = re.compile("Current loss scale already at minimum")

# Megatron-LM core_r0.10-0.16, rerun_state_machine.py (source, wheel 0.16.1), an exception of the rank that
# found it:
#   RuntimeError: Rank 3, node gpu-17, device 3, iteration 412: Unexpected result nan (message='found NaN in local grad norm for
#   bucket #0 in backward pass before data-parallel communication collective')
#   ... message='found NaN in local forward loss calculation'     ... message='found Inf in local forward loss calculation'
#   Unexpected result nan on rank 3 at iteration #412 invocation #7 (message='found NaN in local forward loss calculation')
# core_r0.4-0.9, an assertion:
#   AssertionError: Rank 13: found NaN in local grad norm in backward pass before data-parallel communication
#   collective. Device: 5, node: node-15-11
_FOUND = re.compile(
    r"found (?:NaN|Inf) in local (grad norm|forward loss)(?: for (bucket #\d{1,6}))?", re.IGNORECASE
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,7})[:, ]")
# torch 1.8-2.13, autograd/engine.cpp and anomaly mode (source):
#   RuntimeError: Function 'ScaledDotProductEfficientAttentionBackward0' returned nan values in its 0th output.
_ANOMALY = re.compile(r"Function '(\w{1,120})' returned nan values in its (\d{1,4})th output")


def _overflow(match: re.Match[str], rank: int | None) -> Fact:
    return facts.LossScaleReduced(rank, float(match[1]) if match[1] else None, _excerpt(match))


def _minimum(match: re.Match[str], rank: int | None) -> Fact:
    return facts.LossScaleReduced(rank, None, _excerpt(match), at_minimum=True)


def _non_finite(match: re.Match[str], rank: int | None) -> Fact:
    named = _RANK.search(match.string, 0, match.start())
    if named is None and rank is None:
        return None  # each of these names its rank: this is talk about one
    what = "loss" if "loss" in match[1].lower() else "grad"
    return facts.NonFiniteReported(int(named[1]) if named else rank, what, match[2] or "", _excerpt(match))


def _anomaly(match: re.Match[str], rank: int | None) -> Fact:
    return facts.NonFiniteReported(rank, "grad", f"{match[1]}, output {match[2]}", _excerpt(match))


# --- processes that failed: exit codes negative for signals, as torchelastic has them; pid 0 where not shown

# torch 2.13.0 elastic agent, captured on two gloo ranks, 2026-11-21:
#   E1121 00:37:02.756000 20337 .../multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 20342) of binary: ...
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: \d{1,9} \(pid: (\d{1,9})\)")
# The table that torchrun prints last (ChildFailedError), same capture:
#     rank      : 1 (local_rank: 1)
#     exitcode  : -15 (pid: 20341)  (SIGTERM)
_TABLE_RANK = re.compile(r"^\s+rank\s+: (\d{1,9}) \(local_rank: \d{1,9}\)")
_TABLE_EXIT = re.compile(r"^\s+exitcode\s+: (-?\d{1,9}) \(pid: (\d{1,9})\)")
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
_SIGNALS = {"Killed": 9, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7}
# Open MPI 1.8-5.0:   mpirun noticed that process rank 1 with PID 4711 on node gpu-17 exited on signal 9 (Killed).
_MPI = re.compile(
    r"(?:mpirun|mpiexec|prterun) noticed that process rank (\d{1,7}) with PID (\d{1,9}) on node \S{1,253} "
    r"exited on signal (\d{1,3})"
)


def _failed(match: re.Match[str], _: int | None) -> Fact:
    return facts.WorkerFailureReported(None, int(match[1]), int(match[2]), match.string.strip())


def _named(match: re.Match[str], _: int | None) -> Fact:
    return facts.WorkerNamed(int(match[1]))


def _deepspeed(match: re.Match[str], _: int | None) -> Fact:
    return facts.WorkerFailureReported(int(match[1]), int(match[2]), 0, _excerpt(match))


def _srun(match: re.Match[str], _: int | None) -> Fact:
    code = int(match[2]) if match[2] else -_SIGNALS[match[3]]
    if code == 0:
        return None
    return facts.WorkerFailureReported(int(match[1]), code - 256 if code > 256 else code, 0, _excerpt(match))


def _mpi(match: re.Match[str], _: int | None) -> Fact:
    return facts.WorkerFailureReported(int(match[1]), -int(match[3]), int(match[2]), _excerpt(match))


# --- torch's NCCL watchdog: the ranks that print a timeout are those that waited; the culprit is the one that
# --- is behind them, or that prints nothing

# torch 2.11.0, NCCL 2.28.9, two H200, 2026-11-20 (before the ]: [rank0]:[E1120 22:50:13.696955209
# ProcessGroupNCCL.cpp:689):
#   [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=22, OpType=ALLREDUCE, NumelIn=1048576,
#   NumelOut=1048576, Timeout(ms)=30000) ran for 30031 milliseconds before timing out.
_TIMED_OUT = re.compile(
    r"\[Rank (\d{1,7})\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,64}), "
    r"NumelIn=(\d{1,18}), NumelOut=(\d{1,18}), Timeout\(ms\)=\d{1,18}\) ran for (\d{1,18}) milliseconds"
)
# The same run; of the rank that did not come to the call:
#   [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a collective timeout from  rank 0 and we will try our
#   best to dump the debug info. Last enqueued NCCL work: 21, last completed NCCL work: 21.
_STATE = re.compile(
    r"\[PG ID \d{1,9} PG GUID ([^\s(]{1,64})\(([^)]{0,128})\) Rank (\d{1,7})\].{1,300}?"
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})"
)


def _timed_out(match: re.Match[str], rank: int | None) -> Fact:
    """`rank` is that of the line's prefix or file. The [Rank n] in the text counts within the process group:
    for the default group it is the same, for others only the prefix has it."""
    own, seq, op, numel_in, numel_out, milliseconds = match.groups()
    who = int(own) if rank is None else rank
    return facts.CollectiveTimedOut(
        who, int(seq), op.lower(), int(numel_in), int(numel_out), int(milliseconds) / 1000
    )


def _state(match: re.Match[str], rank: int | None) -> Fact:
    group, desc, own, enqueued, completed = match.groups()
    if rank is None and desc != "default_pg":
        return None
    return facts.WatchdogState(int(own) if rank is None else rank, group, desc, int(enqueued), int(completed))


# --- tries to reach the store at which the job meets

# torch 2.5-2.13, TCPStore.cpp; the addresses in the lines of socket.cpp around it may be wrong (2.13 prints
# freed memory):
#   [W1123 00:19:34.189396703 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.9.9.9:29500 - retrying
#   (try=3, timeout=900000ms, delay=1366ms): The client socket has failed to connect to any network address of (10.9.9.9, 29500).
#   The client socket has failed to connect to 94.85.0.0:1529 (errno: 101 - Network is unreachable).
_RETRYING = re.compile(
    r"failed to connect/validate to host (.{1,253}):(\d{1,5}) - retrying \(try=\d{1,9}, timeout=\d{1,12}ms, "
    r"delay=(\d{1,9})ms\): (.*)"
)
# torch 1.11-2.13, socket.cpp, each second while a name has no address:
#   [W1121 23:29:34.025284904 socket.cpp:697] [c10d] The IPv6 network addresses of (trainer-0.train-svc, 29500) cannot be
#   retrieved (gai error: -2 - Name or service not known).
_UNKNOWN = re.compile(
    r"network addresses of \((.{1,253}), (\d{1,5})\) cannot be retrieved \((gai error: -?\d{1,5} - [^)]{1,100})\)"
)
# torch 1.11-2.3, socket.cpp, each second:
#   [W socket.cpp:558] [c10d] The client socket has failed to connect to [trainer-0]:29500 (errno: 111 - Connection refused).
_REFUSED = re.compile(
    r"\[W socket\.cpp:\d{1,5}\] \[c10d\] The client socket has failed to connect to \[?(.{1,253}?)\]?:(\d{1,5}) "
    r"\((errno: \d{1,4} - [^)]{1,100})\)"
)
_WHY = re.compile(r"\((errno: \d{1,4} - [^)]{1,100})\)")
_OFTEN = 15.0  # seconds: the longest that lines without a delay are apart while the name is looked up


def _retried(match: re.Match[str], rank: int | None) -> Fact:
    host, port, delay, outcome = match.groups()
    why = _WHY.search(outcome)
    return facts.StoreTried(
        rank, host, int(port), why[1] if why else outcome[:200], int(delay) / 1000, match.string[:500]
    )


def _tried(match: re.Match[str], rank: int | None) -> Fact:
    return facts.StoreTried(rank, match[1], int(match[2]), match[3], _OFTEN, match.string[:500])


# --- versions


def _version(package: str) -> Callable[[re.Match[str], int | None], Fact]:
    return lambda match, rank: facts.VersionSeen(rank, package, match[1])


FORMS: tuple[Form, ...] = (
    Form("OVERFLOW! Rank", _OVERFLOW, _overflow),
    Form("Current loss scale already at minimum", _MINIMUM, _minimum),
    Form(" in local ", _FOUND, _non_finite),
    Form("returned nan values in its", _ANOMALY, _anomaly),
    Form("exitcode", _FAILED, _failed),
    Form("exitcode", _TABLE_EXIT, _failed),
    Form("local_rank", _TABLE_RANK, _named),
    Form("exits with return code = ", _DEEPSPEED, _deepspeed),
    Form("srun: error: ", _SRUN, _srun),
    Form(" noticed that process rank ", _MPI, _mpi),
    Form("Watchdog caught", _TIMED_OUT, _timed_out),
    Form("ast enqueued", _STATE, _state),
    Form("- retrying (try=", _RETRYING, _retried),
    Form("gai error: ", _UNKNOWN, _tried),
    Form("The client socket has failed to connect to ", _REFUSED, _tried),
    # ms-swift 4.6.0, stderr of rank 0:   [INFO:swift] swift.__version__: 4.6.0
    #   [INFO:swift] megatron.core.__version__: 0.16.1
    # ms-swift 4.1-4.6:   [INFO:swift] mcore_bridge.__version__: 1.6.5
    *(
        Form(
            "__version__: ",
            re.compile(rf"^\[INFO:swift\] {re.escape(module)}\.__version__: ([\w.+-]{{1,40}})"),
            _version(package),
        )
        for module, package in (
            ("swift", "ms-swift"),
            ("megatron.core", "megatron-core"),
            ("mcore_bridge", "mcore-bridge"),
        )
    ),
    # DeepSpeed 0.9-0.19:   [2026-11-20 22:48:19,123] [INFO] [logging.py:107:log_dist] [Rank 0] DeepSpeed info: version=0.19.8
    Form("DeepSpeed info", re.compile(r"DeepSpeed info: version=([\w.]{1,40})"), _version("deepspeed")),
    # NCCL 2.28.9, two H200, 2026-11-20:   NCCL version 2.28.9+cuda13.0
    Form("NCCL version", re.compile(r"NCCL version (\d{1,3}(?:\.\d{1,3}){1,3})"), _version("nccl")),
)
# One of these is in each line that has a fact here: what a large log is searched for.
WORDS = tuple(dict.fromkeys(form.word for form in FORMS))


def read_line(text: str, rank: int | None) -> Iterator[facts.Observation]:
    for word, pattern, fact in FORMS:
        if word in text and (match := pattern.search(text)) and (found := fact(match, rank)) is not None:
            yield found
