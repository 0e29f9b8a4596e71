"""What people write: rules, settings, run.json, hostfiles, manifests, NCCL's configuration; and memory of
another process."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from diag.text.errors import DiagError
from tests.labs.fuzz.targets.base import Target

__all__ = ["TARGETS", "end_what_was_started"]

_ROOT = Path(__file__).parents[4]


def _rules(data: bytes, home: Path) -> None:
    """`diag rules test FILE`, and the rule over lines of a log where it can be used."""
    from diag.detectors import make_detectors
    from diag.detectors.precedence import PRECEDENCE
    from diag.detectors.rules.check import check
    from diag.detectors.rules.load import Loaded, load, read_rules
    from diag.engine.engine import Engine
    from diag.model import Record
    from diag.sources.parsers import PARSERS
    from tests.labs.fuzz.targets.base import told

    (home / "one.yaml").write_bytes(data)
    read = list(read_rules([home / "one.yaml"]))
    good = [item for item in read if isinstance(item, Loaded)]
    said = [str(item) for item in (*read, *check(good, ())) if not isinstance(item, Loaded)]
    assert not any(char in line for line in said for char in "\x00\x07\x1b\x9b"), (
        f"control characters: {said!r}"[:300]
    )
    try:
        rules = load([home])
    except DiagError:
        return
    lines = [[text.decode("utf-8", "replace"), 0] for text in data.split(b"\n")[:50]] + [["a" * 20_000, 0]]
    told(
        [Record("output", {"stream": "stdout", "lines": lines}, 0, "", 1.0, 1.0)],
        Engine(PARSERS, make_detectors(rules), PRECEDENCE),
    )


def _rule_seeds() -> list[bytes]:
    files = sorted((_ROOT / "rules" / "signatures").rglob("*.yaml"))
    return [path.read_bytes() for path in files[:: max(1, len(files) // 25)]]


def _settings(data: bytes, home: Path) -> None:
    """diag.toml in the working directory."""
    from diag import settings

    (home / "diag.toml").write_bytes(data)
    before = Path.cwd()
    os.chdir(home)
    try:
        settings.load()
    except DiagError:
        return
    finally:
        os.chdir(before)


_TOML = b"""run_root = "/tmp/x"\nport = 9100\nhttp = true\nnodes = "gpu1:9095,gpu2"\nstack_seconds = 5.0\nlang = "zh"\nras = "off"
token_file = "diag.toml"\nrules = "."\njob_id = "77"\njournal_max_bytes = 1048576\n"""


def _run_json(data: bytes, home: Path) -> None:
    from diag.launch import runs

    folder = home / "run"
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_bytes(data)
    with contextlib.suppress(DiagError):
        json.dumps(runs.read_run(str(folder)))
    list(runs.live_in([str(home)]))
    from diag.cli.top import lives

    lives(folder)


def _launchers(data: bytes, home: Path) -> None:
    """Hostfiles, host lists of Slurm, nccl.conf, pids of a job step, spans of ranks."""
    from diag.knowledge.nccl_filters import parse_conf
    from diag.launch.launchers.hostlist import BadHostlist, expand_hostlist, parse_hostfile
    from diag.sources.host import slurm
    from diag.state.stack_digest import parse_spans

    text = data.decode("utf-8", "replace")
    parse_hostfile(text)
    parse_conf(text)
    slurm.parse_pids(text)
    for line in text.splitlines():
        with contextlib.suppress(BadHostlist):
            expand_hostlist(line)
        with contextlib.suppress(ValueError):
            parse_spans(line)


_HOSTS = [
    b"gpu-1 slots=8\ngpu-2 slots=8 # x\n[group]\n",
    b"gpu[1-4,7],head\nrack[01-12]node[1,3-5]\n",
    b"NCCL_DEBUG=INFO\n# x\nNCCL_IB_HCA=mlx5\n",
    b"PID      JOBID    STEPID   LOCALID GLOBALID\n812      77       0        0       0\n",
    b"0-3,7,9-11\n",
]


def _manifest(data: bytes, home: Path) -> None:
    from diag.preflight.manifest import check_manifests

    place = home / "job.yaml"
    place.write_bytes(data)
    with contextlib.suppress(DiagError):
        list(check_manifests([str(place)]))


def _manifest_seeds() -> list[bytes]:
    return [path.read_bytes()[:20_000] for path in sorted((_ROOT / "deploy").rglob("*.yaml"))[:12]]


_started: list[subprocess.Popen[bytes]] = []


def end_what_was_started() -> None:
    for process in _started:
        process.kill()
        process.communicate()
    _started.clear()
    _sleeper.cache_clear()


@functools.cache
def _sleeper() -> int:
    """A process with a Python stack, that ends when this one does."""
    code = "import sys\ndef inner():\n    print('ready', flush=True)\n    sys.stdin.read()\ndef outer():\n    inner()\nouter()\n"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    _started.append(process)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process.pid


def _memory(data: bytes, home: Path) -> None:
    """The reader of another process's stacks, with lies in what it reads: the input says where, and which."""
    from unittest import mock

    from diag.model import Record
    from diag.model.observations import Unparsed
    from diag.sources.stacks import remote_stack
    from diag.sources.stacks.remote_stack import memory

    real, lies, chance = os.pread, list(data), random.Random(data)

    def lying(fd: int, size: int, at: int) -> bytes:
        read = bytearray(real(fd, size, at))
        lie = lies.pop(0) if lies else 0
        if lie and read:
            place, width = chance.randrange(len(read)), (1, 2, 4, 8)[lie & 3]
            read[place : place + width] = (
                b"\0" * width,
                b"\xff" * width,
                chance.randbytes(width),
                bytes(read[:width]),
            )[lie >> 2 & 3]
            if lie > 200:
                del read[chance.randrange(len(read) + 1) :]
        return bytes(read)

    stacks = remote_stack.RemoteStacks()
    with mock.patch.object(memory.os, "pread", lying):
        payload = stacks.dump(_sleeper(), 1.0)
    stacks.close()
    json.dumps(payload)
    facts = list(remote_stack.parse(Record(remote_stack.SOURCE, payload, 0)))
    assert not any(isinstance(fact, Unparsed) for fact in facts)


def _memory_seeds() -> list[bytes]:
    _sleeper()
    return [b"", bytes(40) + b"\x05", bytes(80) + b"\x0a\xc9", bytes(range(120))]


TARGETS = (
    Target("rules", "rule files (YAML), `diag rules test`, and what they match", "text", _rule_seeds, _rules),
    Target("settings", "`diag.toml`", "text", lambda: [_TOML], _settings),
    Target(
        "run-json",
        "`run.json` of a run directory",
        "json",
        lambda: [
            b'{"schema": "diag.run/1", "run_id": "r", "hub_pid": 1, "pid": 1, "host": "x", "url": "http://127.0.0.1:9095"}'
        ],
        _run_json,
    ),
    Target(
        "launchers",
        "hostfiles, host lists of Slurm, `nccl.conf`, lists of ranks",
        "text",
        lambda: _HOSTS,
        _launchers,
    ),
    Target("manifests", "Kubernetes manifests (YAML), `diag doctor`", "text", _manifest_seeds, _manifest),
    Target(
        "process-memory",
        "memory of a rank that lies, to the reader of its stacks",
        "bytes",
        _memory_seeds,
        _memory,
    ),
)
