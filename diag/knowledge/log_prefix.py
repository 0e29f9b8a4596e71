"""What comes before the message of a log line: what containers and launchers put there, and what the program's
own loggers do.

`strip_outer` is for every line, before any parser; `message_of` for whoever wants the words alone. Both are
pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone


@dataclass(frozen=True, slots=True)
class Outer:
    """A line without its outer prefixes, and what these showed. `task` is the launcher's number of the process:
    Slurm's task or MPI's rank, which is the training's rank where each task is one. `at`: seconds since the
    epoch, of a time with its zone."""

    text: str
    local_rank: int | None = None
    host: str = ""
    at: float | None = None
    task: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """The words of a line. `level` is DEBUG, INFO, WARNING, ERROR, CRITICAL or "" where the line does not
    tell."""

    text: str
    level: str = ""
    rank: int | None = None


_MOST_PREFIXES = 6  # `kubectl --prefix --timestamps` of `srun --label` of `torchrun --tee` are four
_MOST_CHARS = 400  # of a line, in which its prefixes are

# Colours, and nothing else of what a terminal knows (ms-swift's and ray's own; `docker compose` and stern on
# a terminal):
#   ESC[36m(RayTrainWorker pid=7230)ESC[0m Setting up process group
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m|\x1b\[K|\x1b\(B")

# Containers whose name stern writes behind the pod's (Kubeflow's PyTorchJob wants its own to be called
# pytorch).
_CONTAINERS = r"(?:pytorch|trainer|train|node|mpi|main|ray-worker|ray-head|worker|launcher|container-\d{1,2})"

# What can begin an outer prefix. One look decides for nearly all lines that there is none.
_MAY_BEGIN = re.compile(
    r"[ 0]{0,6}\d{1,7}: |\d{4}-\d\d-\d\dT\d"
    r"|\[(?:pod/|\d{1,6},\d{1,7}\]<|prterun-|(?!rank\d)[A-Za-z_]{1,40}-?\d{1,4}(?::\d{1,7})?\]:)"
    r"|\((?:raylet|autoscaler|(?:[^\s()]{1,100} )?pid=\d)|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:"
    r"|[a-z0-9][\w.-]{0,250}(?:: |:$| {1,40}\|| " + _CONTAINERS + " )"
)

# `docker logs --timestamps` 20-28 and `kubectl logs --timestamps`; kubectl gives the node's own zone:
#   2026-11-21T10:00:00.123456789Z [INFO:swift] Start time of running main: ...
#   2026-11-21T18:00:00.123456789+08:00 ...
# containerd and CRI-O below /var/log/pods (Kubernetes CRI log format; P is a part of a longer line):
#   2026-11-21T10:00:00.123456789Z stdout F [INFO:swift] ...
# journalctl -o short-iso and rsyslog's RSYSLOG_FileFormat go on with host and unit:
#   2026-11-21T10:00:00+0000 gpu-17 slurmd[812]: launch task StepId=77.0
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d) "
    r"(?:std(?:out|err) [FP] ?|([\w.-]{1,100}) [\w./@-]{1,100}(?:\[\d{1,10}\])?: )?"
)
# journalctl's and syslog's short form; moreutils' `ts` writes the time alone. No year, no zone:
#   Nov 21 10:00:00 gpu-17 train.sh[20337]: [INFO:swift] ...
_SYSLOG = re.compile(
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:([\w.-]{1,100}) [\w./@:-]{1,100}\[\d{1,10}\]: )?"
)
# kubectl logs --prefix (kubectl 1.18 and newer):
#   [pod/dpo-worker-0/pytorch] [INFO:swift] ...
_POD = re.compile(r"\[pod/([^\]/\s]{1,253})/[^\]\s]{1,253}\] ?")
# stern 1.x when not on a terminal: pod, container, the line:
#   dpo-worker-0 pytorch [INFO:swift] ...
_STERN = re.compile(
    r"([a-z0-9][a-z0-9.-]{0,200}-(?:worker|master|launcher|head|node|replica)[a-z0-9-]{0,60}) "
    + _CONTAINERS
    + " "
)
# docker compose 2 (compose 1 wrote trainer_1):
#   trainer-1  | [INFO:swift] ...
_COMPOSE = re.compile(
    r"([a-z0-9][a-z0-9_.-]{0,100}[-_]\d{1,5}|[a-z][a-z0-9_.-]{0,60}(?= {2,40}\|)) {1,40}\| ?"
)
# Slurm, `srun --label` (srun(1): the task number, right-aligned to the largest):
#    3: [INFO:swift] ...
_LABEL = re.compile(r"[ 0]{0,6}(\d{1,7}): (?!\d+%)")
# Open MPI 1.4-4.1 `mpirun --tag-output` (job, rank), and 5.0 (PRRTE):
#   [1,0]<stderr>:[INFO:swift] ...
#   [prterun-gpu-17-4711@1,0]<stdout>: [INFO:swift] ...
_MPI = re.compile(r"\[(?:prterun-[^\]\s@]{1,200}@)?\d{1,9},(\d{1,7})\]<std(?:out|err|diag)>:[ ]?")
# torchrun --tee 3 (torch 1.9-2.13), role and LOCAL rank; TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE may add the
# rank behind a colon:
#   [default0]:[INFO:swift] ...
_TEE = re.compile(r"\[(?!rank\d)[A-Za-z_]{1,40}?-?(\d{1,4})(?::\d{1,7})?\]:")
# ray 2.x, workers and actors on the driver's stdout (ray-project/ray#33290); ray 1.x wrote no class
# (ray-project/ray#16979):
#   (RayExecutor pid=423719, ip=172.16.0.2) Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/2
#   (pid=34272) torch dist: nccl tcp://10.148.18.24:47078 4 3 ...
#   (raylet) Warning: ...
_RAY = re.compile(r"\((?:raylet|autoscaler|(?:[^\s()]{1,100} )?pid=\d{1,10})(?:, ip=([\w.:-]{1,60}))?\) ?")
# pdsh, which DeepSpeed's launcher uses for several nodes:
#   worker-1: [2023-05-12 07:24:57,912] [INFO] [launch.py:145:main] WORLD INFO DICT: ...
#   10.0.44.113: Traceback (most recent call last):
# `train.py: error: ...`, `python3: can't open file` and `libcudart.so.12: cannot open` look alike and are
# none.
_HOST = re.compile(
    r"(?!(?:python|lib|gcc|g\+\+|step|epoch|iter|layer|rank|cuda|gpu|line|test|top|sha|md5)[\w.-]*:)"
    r"([a-z0-9](?:[a-z0-9.-]{0,200}[a-z0-9])?):(?: |$)"
)
_PROGRAM = re.compile(r".*\.(?:py|sh|so|cpp|cc|cu|h|json|yaml|log)(?:[.\d]*)$")


def strip_outer(text: str) -> Outer:
    """
    >>> strip_outer("[pod/dpo-worker-0/pytorch] 3: [default1]:[INFO:swift] ready")
    Outer(text='[INFO:swift] ready', local_rank=1, host='dpo-worker-0', at=None, task=3)
    """
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if _MAY_BEGIN.match(text) is None:
        return Outer(text)
    return _peel(text)


def without_outer(text: str) -> str:
    """The text of `strip_outer` alone: what each line costs most often is this look."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return text if _MAY_BEGIN.match(text) is None else _peel(text).text


def _peel(text: str) -> Outer:
    numbers: dict[str, int] = {}
    host = ""
    at: float | None = None
    begin = 0
    head = text[:_MOST_CHARS]
    for _ in range(_MOST_PREFIXES):
        match, kind = _prefix(head, begin)
        if match is None or match.end() == begin:
            break
        if kind == "time":
            at = _epoch(match) if at is None else at
            host = host or match[4] or ""
        elif kind == "host":
            host = host or match[1] or ""
        else:
            numbers.setdefault(kind, int(match[1]))
        begin = match.end()
    return Outer(text[begin:], numbers.get("local_rank"), host, at, numbers.get("task"))


def _prefix(head: str, begin: int) -> tuple[re.Match[str] | None, str]:
    """The prefix that begins there, and what it shows."""
    for matches, kind in _HEADS_BY_FIRST.get(head[begin : begin + 1], _OTHER_HEADS):
        if match := matches(head, begin):
            return match, kind
    return None, ""


def _host(text: str, begin: int) -> re.Match[str] | None:
    """A host's name, as far as one line shows: with a number, as machines of a cluster have."""
    match = _HOST.match(text, begin)
    if match is None or _PROGRAM.match(match[1]) or not any(char.isdigit() for char in match[1]):
        return None
    return match


_Matches = Callable[[str, int], re.Match[str] | None]
_HEADS_BY_FIRST: dict[str, tuple[tuple[_Matches, str], ...]] = {
    "[": ((_POD.match, "host"), (_MPI.match, "task"), (_TEE.match, "local_rank")),
    "(": ((_RAY.match, "host"),),
}
_OTHER_HEADS: tuple[tuple[_Matches, str], ...] = (
    (_TIME.match, "time"),
    (_SYSLOG.match, "host"),
    (_LABEL.match, "task"),
    (_COMPOSE.match, "host"),
    (_STERN.match, "host"),
    (_host, "host"),
)


def _epoch(match: re.Match[str]) -> float | None:
    zone = match[3].replace(":", "")
    try:
        moment = datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
        if zone != "Z":
            ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:5]))
            moment = moment - ahead if zone[0] == "+" else moment + ahead
        return moment.timestamp() + (float("0." + match[2]) if match[2] else 0.0)
    except (ValueError, OverflowError):
        return None


# --- what the program's own loggers write

_LEVELS = {
    "D": "DEBUG", "V": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "C": "CRITICAL", "WARN":
    "WARNING", "FATAL": "CRITICAL", "TRACE": "DEBUG", "ABORT": "CRITICAL", "SUCCESS": "INFO",
}  # fmt: skip
_LEVEL = r"(TRACE|DEBUG|INFO|SUCCESS|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_DATE = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"

# torch 2.4-2.13 before each line of an uncaught exception and of the C++ log; Lightning 2.x writes [rank: 1]:
#   [rank1]: RuntimeError: DataLoader worker (pid 20352) is killed by signal: Killed.
_RANK = re.compile(r"\[rank:? ?(\d{1,6})\]:? ?")
# The C++ log of torch 2.2-2.13 and of torch before (no time), two H200 2026-11-20 and reports:
#   [W1120 22:48:19.163027360 WorkerServer.cpp:155] [c10d] Server listening to TCP :::0
#   [E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: ...
_GLOG = re.compile(
    r"\[([DVIWEFC])(?:\d{4} \d\d:\d\d:\d\d\.\d{1,9}(?: \d{1,10})?)? [\w./+-]{1,200}:\d{1,7}\] ?"
)
# torch's Python logs 2.3-2.13 (elastic agent, dynamo), and glog's own programs:
#   E1121 00:37:02.756000 20337 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) ...
_GLOG_BARE = re.compile(
    r"([DVIWEFC])\d{4} \d\d:\d\d:\d\d\.\d{1,9}\s{1,8}\d{1,20} [\w./+@-]{1,300}:\d{1,7}\] ?"
)
# ms-swift 3.7-4.6:   [INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170
_SWIFT = re.compile(rf"\[{_LEVEL}:[\w.-]{{1,60}}\] ?")
# DeepSpeed 0.9-0.18; torch 2.0-2.2's elastic agent; LLaMA-Factory 0.9:
#   [2026-11-20 22:48:19,123] [INFO] [utils.py:785:see_memory_usage] MA 0.62 GB ...
#   [2023-12-13 10:00:00,123] torch.distributed.run: [WARNING] *****************************************
#   [INFO|2025-01-20 11:29:52] llamafactory.hparams.parser:359 >> Process rank: 0, ...
_DEEPSPEED = re.compile(rf"\[{_DATE}\] \[{_LEVEL}\] (?:\[[\w./<>-]{{1,120}}:\d{{1,7}}:[\w<>]{{1,120}}\] ?)?")
# Hydra 1.0-1.3, and who adds the line:
#   [2025-10-24 14:16:43,968][__main__][INFO] - ready       [2025-10-24 14:16:43,968][main.py][line:104][INFO] ready
_HYDRA = re.compile(rf"\[{_DATE}\](?:\[[\w./:<>-]{{1,120}}\]){{0,3}}\[{_LEVEL}\] ?(?:- )?")
_ELASTIC = re.compile(rf"\[{_DATE}\] [\w.]{{1,120}}: \[{_LEVEL}\] ?")
# transformers 4.x (enable_explicit_format):  [WARNING|trainer.py:77] 2026-11-20 22:48:19,123 >> Setting ...
_TRANSFORMERS = re.compile(rf"\[{_LEVEL}\|[^\]\n]{{1,120}}\] (?:{_DATE}|[\w.]{{1,120}}:\d{{1,7}}) >> ?")
# Megatron-LM core_r0.12-0.16 (blanks may come before it), NCCL_DEBUG_TIMESTAMP_FORMAT's own default:
#   [2026-11-21 00:17:13] iteration        1/       8 | consumed samples: ...
_BRACKETED = re.compile(rf"\s{{0,4}}\[{_DATE}\] ?")
# logging.Formatter as most programs and examples set it; mmengine; loguru; torchtitan's [titan] before it:
#   2026-11-20 22:48:19,123 - root - INFO - Building llama3     11/21/2026 10:00:00 - INFO - __main__ - Distributed ...
#   2026-11-21 10:00:00.123 | INFO     | __main__:main:12 - ready      2026-11-21 10:00:00,123 INFO worker.py:1942 -- Started
_LOGGING = re.compile(
    rf"(?:\[titan\] )?(?:{_DATE}|\d\d/\d\d/\d{{4}} \d\d:\d\d:\d\d)(?: ?[-|:]{{1,2}} ?| )"
    rf"(?:[\w./]{{1,120}} ?[-|:]{{1,2}} ?)?\[?{_LEVEL}\]?\s{{0,8}}"
    r"(?:[-|:]{1,2} (?:[\w.<>]{1,120}:[\w<>]{1,120}:\d{1,7} - |[\w.]{1,120} - )?|[\w./]{1,120}:\d{1,7} -- )?"
)
# logging.basicConfig, torch 1.9-1.13:   ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0
# jax 0.4.13-0.5 adds time and line:   INFO:2026-06-03 03:08:57,841:jax._src.xla_bridge:925: Unable to initialize backend 'rocm': ...
_BASIC = re.compile(rf"{_LEVEL}:(?:{_DATE}:)?[\w.]{{1,200}}:(?:\d{{1,7}}:)? ?")
# NCCL 2.4-2.32, here 2.28.9:   gpu-17:812:955 [3] NCCL INFO NET/IB : No device found.
_NCCL = re.compile(
    r"[\w.-]{1,255}:\d{1,10}:\d{1,10} \[\d{1,5}\] (?:[\w /.-]{0,80}:\d{1,6} )?NCCL (INFO|WARN|ABORT|TRACE) "
)

# What people put before a line that they paste: a quote, a place in a list, `grep -n` and its context.
#   > RuntimeError: ...      - RuntimeError: ...      `RuntimeError: ...`      1042:RuntimeError: ...      1041-  File ...
_QUOTED = re.compile(r"(?:> ?){1,4}|[-*] (?=\S)|`{1,3}(?=[A-Z][\w.]{2,60}: )")
_GREPPED = re.compile(r"\d{1,9}[:-](?=[^\d\s]|  |\d{4}-\d\d-\d\d[ T])")

_BY_FIRST: dict[str, tuple[re.Pattern[str], ...]] = {
    "[": (_RANK, _SWIFT, _GLOG, _DEEPSPEED, _HYDRA, _ELASTIC, _TRANSFORMERS, _LOGGING, _BRACKETED),
    " ": (_BRACKETED,),
    **dict.fromkeys("DVIWEFCT", (_GLOG_BARE, _BASIC, _NCCL)),
    **dict.fromkeys("0123456789", (_LOGGING, _NCCL, _GREPPED)),
    **dict.fromkeys(">-*`", (_QUOTED,)),
}


def without_quote(text: str) -> str:
    """Without what people put before a line that they paste.

    >>> without_quote("> Killed"), without_quote("1042:Killed"), without_quote("Killed")
    ('Killed', 'Killed', 'Killed')
    """
    form = _QUOTED if text[:1] in ">-*`" else _GREPPED
    match = form.match(text)
    return text[match.end() :] if match else text


def message_of(text: str) -> Message:
    """Of a line without its outer prefixes.

    >>> message_of("[rank1]:[W1120 22:48:19.163027360 WorkerServer.cpp:155] [c10d] Server listening")
    Message(text='[c10d] Server listening', level='WARNING', rank=1)
    """
    rank: int | None = None
    level = ""
    begin = 0
    head = text[:_MOST_CHARS]
    for _ in range(_MOST_PREFIXES):
        if begin and head[begin : begin + 1] == " ":
            break  # the indent of a traceback
        for form in _BY_FIRST.get(head[begin : begin + 1], (_NCCL,)):
            match = form.match(head, begin)
            if match is None:
                continue
            if form is _RANK:
                rank = int(match[1])
            elif form.groups and match[1]:
                level = _LEVELS.get(match[1], match[1])
            begin = match.end()
            break
        else:
            break
    return Message(text[begin:], level, rank)
