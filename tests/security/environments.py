"""Odd environments in which people start their jobs, each with a command that runs in it alone and under
`diag run`: exit code, output and the variables that the command gets have to be the same.

`python -m tests.security.environments` runs all and prints the table of docs/evidence/environments.md.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ENVIRONMENTS", "Environment", "Seen", "compare", "missing"]

DIAG = str(Path(sys.executable).parent / "diag")
_PRINT = "echo out; echo err >&2; "
SHELL = ("sh", "-c", _PRINT + "exit 7")
LASTING = ("sh", "-c", "sleep 1.5; " + _PRINT + "exit 7")  # as long as diag loads
PYTHON = (
    sys.executable,
    "-c",
    "import sys, time; time.sleep(1.5); print('out'); print('err', file=sys.stderr); sys.exit(7)",
)
_SHOW = ("sh", "-c", "env; exit 7")

# What diag adds for CMD (docs/reference/commands.md), and what a shell changes by itself.
_ADDED = re.compile(
    r"^(PYTHONPATH|DIAG_\w+|NCCL_DEBUG|NCCL_DEBUG_FILE|NCCL_RAS_ADDR|TORCH_\w+|_|SHLVL|OLDPWD|PWD|STARTED_BY_\w+)="
)


@dataclass(frozen=True, slots=True)
class Environment:
    """`prepare` makes files in a folder of its own; `{folder}` in words and variables is that folder."""

    name: str
    variables: Mapping[str, str | None] = field(default_factory=dict)  # None: taken away
    shell: str = ""  # done by sh before the command, such as `ulimit -n 16;`
    files: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = SHELL
    wrap: tuple[str, ...] = ()  # words before the command
    before: Callable[[], object] | None = None  # in the child, before exec
    unwatched: bool = False  # diag itself has no room here: CMD must come through all the same
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """How the command ended, alone or under diag; `said` is what diag said on stderr."""

    code: int
    out: bytes
    err: bytes
    variables: frozenset[str]
    said: str


def missing(what: Environment) -> str:
    """Why it cannot be tried here; empty where it can."""
    for need in what.needs:
        if need == "root":
            if os.getuid():
                return "needs root"
        elif shutil.which(need) is None:
            return f"needs {need}"
    return ""


def compare(what: Environment) -> tuple[Seen, Seen]:
    """The same command alone and under `diag run`."""
    with tempfile.TemporaryDirectory(prefix="environment-") as made:
        folder = Path(made)
        for name, text in what.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        diag = (DIAG, "run", "--no-http", "--run-root", str(folder / "runs"), "--")
        return _run(what, folder, ()), _run(what, folder, diag)


def _run(what: Environment, folder: Path, diag: tuple[str, ...]) -> Seen:
    code, out, err = _once(what, folder, diag, what.command)
    variables = frozenset[str]()
    if what.command is SHELL:
        _, shown, _ = _once(what, folder, diag, _SHOW)
        lines = shown.decode("utf-8", "surrogateescape").splitlines()
        variables = frozenset(line for line in lines if not _ADDED.match(line))
    # sh says it, once for each sh
    lines = [line for line in err.splitlines(keepends=True) if b"getcwd" not in line]
    said = [line for line in lines if line.startswith(b"diag")]
    rest = b"".join(line for line in lines if line not in said)
    return Seen(code, out, rest, variables, b"".join(said).decode("utf-8", "replace"))


def _once(
    what: Environment, folder: Path, diag: tuple[str, ...], command: tuple[str, ...]
) -> tuple[int, bytes, bytes]:
    words = [word.replace("{folder}", str(folder)) for word in (*what.wrap, *diag, *command)]
    if what.shell:
        words = ["sh", "-c", f'{what.shell.replace("{folder}", str(folder))} exec "$@"', "sh", *words]
    env = dict(os.environ)
    for name, value in what.variables.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value.replace("{folder}", str(folder))
    with open(folder / "out", "w+b") as out, open(folder / "err", "w+b") as err:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=folder,
                                   preexec_fn=what.before)  # noqa: PLW1509 - one thread  # fmt: skip
        code = process.wait(120)
        return code, (folder / "out").read_bytes(), (folder / "err").read_bytes()


def _ignore(number: int) -> Callable[[], object]:
    return lambda: signal.signal(number, signal.SIG_IGN)


_BROKEN = "raise RuntimeError('a module of the job')\n"
_PATH = {"PYTHONPATH": "{folder}"}


def _python(name: str, value: str, command: tuple[str, ...] = SHELL) -> Environment:
    of = "" if command is SHELL else ", a Python job"
    return Environment(f"{name}={value}{of}", {name: value}, command=command)


def _memory(kib: int, command: tuple[str, ...] = LASTING) -> Environment:
    of = "" if command is LASTING else ", a Python job"
    return Environment(
        f"ulimit -v {kib}{of}", shell=f"ulimit -v {kib};", command=command, unwatched=kib < 1_000_000
    )


ENVIRONMENTS: tuple[Environment, ...] = (
    # Python's own variables
    Environment("PYTHONPATH with a diag.py", _PATH, files={"diag.py": _BROKEN}),
    Environment("PYTHONPATH with a package diag", _PATH, files={"diag/__init__.py": _BROKEN}),
    Environment("PYTHONPATH with a sitecustomize that exits", _PATH, files={"sitecustomize.py": "import os; os._exit(3)\n"}),
    Environment("PYTHONPATH with a sitecustomize that prints", _PATH, files={"sitecustomize.py": "print('site')\n"}),
    Environment("PYTHONPATH with a sitecustomize that raises", _PATH, files={"sitecustomize.py": _BROKEN}),
    Environment("PYTHONPATH with a signal.py", _PATH, files={"signal.py": _BROKEN}),
    Environment("PYTHONPATH with a psutil.py", _PATH, files={"psutil.py": _BROKEN}),
    Environment("PYTHONPATH with a json.py", _PATH, files={"json.py": _BROKEN}),
    Environment("PYTHONPATH with a typing.py", _PATH, files={"typing.py": _BROKEN}),
    Environment("PYTHONPATH with a pydantic package", _PATH, files={"pydantic/__init__.py": _BROKEN}),
    Environment("a working directory with diag.py, json.py, queue.py",
                files=dict.fromkeys(("diag.py", "json.py", "queue.py"), _BROKEN)),
    Environment("a Python job that has a module called diag", _PATH, files={"diag.py": "code = 7\n"},
                command=(sys.executable, "-c", "import diag, sys; print('out'); sys.exit(diag.code)")),
    _python("PYTHONHOME", "/nonexistent"),
    _python("PYTHONHASHSEED", "abc"),
    _python("PYTHONINSPECT", "1"),
    _python("PYTHONINSPECT", "1", PYTHON),
    _python("PYTHONVERBOSE", "1"),
    _python("PYTHONPROFILEIMPORTTIME", "1"),
    _python("PYTHONDEVMODE", "1"),
    _python("PYTHONWARNINGS", "error"),
    _python("PYTHONMALLOC", "none"),
    _python("PYTHONIOENCODING", "none"),
    _python("PYTHONUTF8", "2"),
    _python("PYTHONTRACEMALLOC", "none"),
    _python("PYTHONOPTIMIZE", "2", PYTHON),
    _python("PYTHONSAFEPATH", "1", PYTHON),
    _python("PYTHONNOUSERSITE", "1", PYTHON),
    _python("PYTHONPLATLIBDIR", "none"),
    _python("PYTHONCOERCECLOCALE", "warn"),
    Environment("PYTHONSTARTUP that exits", {"PYTHONSTARTUP": "{folder}/start.py"},
                files={"start.py": "import os; os._exit(3)\n"}),
    Environment("PYTHONUSERBASE with a diag of its own", {"PYTHONUSERBASE": "{folder}"},
                files={f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/diag.py": _BROKEN}),
    # memory
    *(_memory(kib) for kib in (80_000, 100_000, 130_000, 150_000, 250_000, 440_000, 1_200_000)),
    _memory(150_000, PYTHON), _memory(400_000, PYTHON),
    Environment("ulimit -d 100000", shell="ulimit -d 100000;", command=LASTING, unwatched=True),
    Environment("ulimit -s 256", shell="ulimit -s 256;"),
    # other limits
    Environment("ulimit -n 12", shell="ulimit -n 12;", unwatched=True),  # with 10 and fewer sh itself runs no script
    Environment("ulimit -n 16", shell="ulimit -n 16;", unwatched=True),
    Environment("ulimit -n 32", shell="ulimit -n 32;", unwatched=True),
    Environment("ulimit -f 0", shell="ulimit -f 0;", unwatched=True, command=("sh", "-c", "exit 7")),
    Environment("ulimit -l 0", shell="ulimit -l 0;"),
    Environment("ulimit -c unlimited", shell="ulimit -c unlimited;"),
    # places
    Environment("HOME unset", {"HOME": None}),
    Environment("HOME=/nonexistent", {"HOME": "/nonexistent", "XDG_STATE_HOME": None}),
    Environment("TMPDIR=/nonexistent", {"TMPDIR": "/nonexistent"}),
    Environment("XDG_STATE_HOME is a file", {"XDG_STATE_HOME": "{folder}/file"}, files={"file": ""}),
    Environment("a working directory that is gone", shell='mkdir "{folder}/gone"; cd "{folder}/gone"; rmdir "{folder}/gone";'),
    Environment("umask 0", shell="umask 0;"),
    Environment("umask 777", shell="umask 777;"),
    # standard streams and signals
    Environment("stdin closed", shell="exec <&-;"),
    Environment("stdin is /dev/zero", shell="exec </dev/zero;"),
    Environment("stdout closed", shell="exec >&-;", command=("sh", "-c", "exit 7")),
    Environment("stderr closed", shell="exec 2>&-;", command=("sh", "-c", "echo out; exit 7")),
    Environment("all three closed", shell="exec <&- >&- 2>&-;", command=("sh", "-c", "exit 7")),
    Environment("stdout is /dev/full", shell="exec >/dev/full;", command=("sh", "-c", "exit 7")),
    Environment("SIGHUP ignored (nohup)", before=_ignore(signal.SIGHUP)),
    Environment("SIGCHLD ignored", before=_ignore(signal.SIGCHLD)),
    Environment("SIGINT ignored", before=_ignore(signal.SIGINT)),
    Environment("SIGPIPE ignored", before=_ignore(signal.SIGPIPE)),
    Environment("SIGTERM ignored", before=_ignore(signal.SIGTERM)),
    Environment("a session of its own (setsid)", wrap=("setsid", "-w"), needs=("setsid",)),
    Environment("a descriptor 9 that the job expects", shell='exec 9>"{folder}/nine";',
                command=("sh", "-c", "echo to nine >&9 && exit 7")),
    # words and variables
    Environment("an empty environment", wrap=("env", "-i")),
    Environment("PATH unset", {"PATH": None}, command=("/bin/sh", "-c", "echo out; exit 7")),
    Environment("LC_ALL=C", {"LC_ALL": "C"}),
    Environment("LC_ALL of no such locale", {"LC_ALL": "xx_YY.nonsense"}),
    Environment("a variable that is no UTF-8", {"ODD": os.fsdecode(b"\xff\xfe")}),
    Environment("a word that is no UTF-8", command=("sh", "-c", 'printf "%s\\n" "$1"; exit 7', "sh", os.fsdecode(b"\xff\xfe"))),
    Environment("a megabyte of variables", {f"BIG_{number}": "x" * 100_000 for number in range(10)}),
    Environment("words of 600 kB", command=("sh", "-c", 'echo $#; exit 7', "sh", *["w" * 60_000] * 10)),
    Environment("COLUMNS=abc", {"COLUMNS": "abc"}),
    Environment("TERM=dumb", {"TERM": "dumb"}),
    Environment("LD_LIBRARY_PATH=/nonexistent", {"LD_LIBRARY_PATH": "/nonexistent"}),
    # namespaces
    Environment("process 1 of a pid namespace", wrap=("unshare", "-pf", "--mount-proc"), needs=("root", "unshare")),
    Environment("no network at all", wrap=("unshare", "-n"), needs=("root", "unshare")),
    Environment("/proc not mounted", wrap=("unshare", "-m", "sh", "-c", 'umount -l /proc; exec "$@"', "sh"),
                needs=("root", "unshare"), unwatched=True),
    Environment("another user's processes hidden (hidepid)",
                # One of its own: a remount would hide them from the whole machine.
                wrap=("unshare", "-pfm", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"),
                needs=("root", "unshare")),
)  # fmt: skip


def main() -> int:
    print(_HEAD)
    wrong = 0
    for what in ENVIRONMENTS:
        if why := missing(what):
            print(f"| {what.name} | not tried: {why} | | |")
            continue
        alone, under = compare(what)
        same = (alone.code, alone.out, alone.err, alone.variables) == (
            under.code,
            under.out,
            under.err,
            under.variables,
        )
        wrong += not same
        differs = "" if same else ", **output or variables differ**"
        print(f"| {what.name} | {alone.code} | {under.code}{differs} | {_said(under.said)} |")
    return 1 if wrong else 0


def _said(text: str) -> str:
    """The first thing that diag has to complain of, without the names of one run."""
    lines = [
        line for line in text.splitlines() if not re.search(r": watching pid|: job (finished|failed)", line)
    ]
    first = re.sub(r"/\S*/environment-\w+", "DIR", lines[0].replace("|", "\\|")) if lines else ""
    return re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "RUN", first)[:160]


_HEAD = """# In odd environments

What shells, schedulers and containers do to the process that starts a job, tried on real processes: each command alone and under
`diag run`. Exit code, standard output, standard error (less diag's own lines) and the variables that the command gets (less those
that diag [adds](../reference/commands.md)) have to be the same. Where diag itself has no room, it says so, and the command comes
through. Written by `python -m tests.security.environments`; `make test-hardening` tries each row.

| environment | exit code alone | under diag | the first thing that diag says of it |
| --- | --- | --- | --- |"""

if __name__ == "__main__":
    sys.exit(main())
