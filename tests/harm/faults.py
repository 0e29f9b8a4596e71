"""What is done to diag: each fault takes a running trial and a seeded random source, and says in words what it did."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.harm.trial import Running

__all__ = ["FAULTS", "Fault"]

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Fault:
    """`harms_hub`: diag run itself ends or its output is lost, so that only the job's own word and the kept output count.
    `job`: more words for the job. `before` makes the surroundings (environment, run root) and is undone by what it returns."""

    name: str
    about: str
    strike: Callable[[Running, random.Random], str]
    harms_hub: bool = False
    no_journal: bool = False
    job: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    before: Callable[[Path, dict[str, str]], Callable[[], None]] | None = None
    needs_root: bool = False


# --- processes -------------------------------------------------------------------------------------------------


def _sidecars(run: Running) -> list[psutil.Process]:
    found = []
    for process in run.hub().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "diag.sidecar" in process.cmdline():
                found.append(process)
    return found


def _send(process: psutil.Process, number: int) -> str:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
    return f"{signal.Signals(number).name} to {process.pid}"


def _kill_one(run: Running, chance: random.Random) -> str:
    found = _sidecars(run)
    return _send(chance.choice(found), signal.SIGKILL) if found else "no sidecar yet"


def _kill_all(run: Running, chance: random.Random) -> str:
    return "; ".join(_send(process, signal.SIGKILL) for process in _sidecars(run))


def _stop_some(run: Running, chance: random.Random) -> str:
    return "; ".join(_send(process, signal.SIGSTOP) for process in _sidecars(run) if chance.random() < 0.7)


def _stop_and_go(run: Running, chance: random.Random) -> str:
    found, seconds = _sidecars(run), chance.uniform(0.2, 2.0)
    for process in found:
        _send(process, signal.SIGSTOP)
    run.pause(seconds)
    for process in found:
        _send(process, signal.SIGCONT)
    return f"sidecars stopped for {seconds:.1f} s"


def _kill_hub(run: Running, chance: random.Random) -> str:
    return _send(run.hub(), signal.SIGKILL)


def _stop_hub(run: Running, chance: random.Random) -> str:
    seconds = chance.uniform(0.2, 3.0)
    hub = run.hub()
    _send(hub, signal.SIGSTOP)
    run.pause(seconds)
    _send(hub, signal.SIGCONT)
    return f"hub stopped for {seconds:.1f} s"


def _stop_hub_over_end(run: Running, chance: random.Random) -> str:
    hub = run.hub()
    _send(hub, signal.SIGSTOP)
    run.until_job_ended()
    _send(hub, signal.SIGCONT)
    return "hub stopped until the job had ended"


def _hub_without_memory(run: Running, chance: random.Random) -> str:
    hub = run.hub()
    room = chance.randrange(0, 32 << 20)
    size = hub.memory_info().vms + room
    resource.prlimit(hub.pid, resource.RLIMIT_AS, (size, size))
    return f"hub may take {room >> 20} MiB more"


def _hub_without_files(run: Running, chance: random.Random) -> str:
    hub = run.hub()
    most = hub.num_fds() + chance.randrange(0, 3)
    resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, (most, most))
    return f"hub may open {most} files"


# --- disk ------------------------------------------------------------------------------------------------------


def _small_disk(root: Path, env: dict[str, str]) -> Callable[[], None]:
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(root)], check=True)
    return lambda: subprocess.run(["umount", "-l", str(root)], check=False) and None


def _fill(run: Running, chance: random.Random) -> str:
    left = chance.choice([0, 0, 4096, 65536])
    free = shutil.disk_usage(run.root).free
    with open(run.root / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range((free - left) // 65536 + 2):
            file.write(bytes(65536))
    if left:
        with contextlib.suppress(OSError):
            os.truncate(run.root / "filler", max(0, (run.root / "filler").stat().st_size - left))
    return f"disk of the run directory full to {left} bytes"


def _read_only(run: Running, chance: random.Random) -> str:
    done = subprocess.run(["mount", "-o", "remount,ro", str(run.root)], capture_output=True, text=True, check=False)
    return "run directory read-only" if done.returncode == 0 else f"not remounted, files are open: {done.stderr.strip()}"


def _remove(run: Running, chance: random.Random) -> str:
    folder = run.run_dir()
    for each in folder.rglob("*"):
        if each.is_file() and not each.name.endswith(".log"):
            each.unlink(missing_ok=True)
    return "files of the run directory removed"


# --- the world around ------------------------------------------------------------------------------------------


def _clock(root: Path, env: dict[str, str]) -> Callable[[], None]:
    undo = _library("clock.so", _CLOCK)(root, env)
    offset = root.parent / "clock"
    offset.write_bytes((0).to_bytes(8, "little", signed=True))
    env |= {"LD_PRELOAD": str(root.parent / "lib/clock.so"), "CLOCK_OFFSET_FILE": str(offset)}
    return undo


def _jump(run: Running, chance: random.Random) -> str:
    jumps = [chance.choice([-7200, 7200, -30 * 86400, 400 * 86400, 0, -1]) for _ in range(3)]
    for jump in jumps:
        with open(run.root.parent / "clock", "r+b") as file:
            file.write(jump.to_bytes(8, "little", signed=True))
        run.pause(0.7)
    return f"clock by {', '.join(map(str, jumps))} s"


def _library(name: str, source: str) -> Callable[[Path, dict[str, str]], Callable[[], None]]:
    def before(root: Path, env: dict[str, str]) -> Callable[[], None]:
        folder = root.parent / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fake.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / name), str(folder / "fake.c"), "-ldl"], check=True)
        env["LD_LIBRARY_PATH"] = str(folder)
        return lambda: None

    return before


def _nothing(run: Running, chance: random.Random) -> str:
    run.pause(0.1)
    return "as it is"


# The wall clock alone, by an offset that is read anew at each call (libfaketime breaks the sleep of Python 3.11: EINVAL).
_CLOCK = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *offset;
static int (*real)(clockid_t, struct timespec *);
static void begin(void) {
  if (real) return;
  const char *name = getenv("CLOCK_OFFSET_FILE");
  int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  void *map = fd >= 0 ? mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (map != MAP_FAILED) offset = map;
  real = dlsym(RTLD_NEXT, "clock_gettime");
}
int clock_gettime(clockid_t id, struct timespec *at) {
  begin();
  int failed = real(id, at);
  if (!failed && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset;
  return failed;
}
time_t time(time_t *out) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (out) *out = at.tv_sec;
  return at.tv_sec;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  out->tv_sec = at.tv_sec;
  out->tv_usec = at.tv_nsec / 1000;
  return 0;
}
"""
_NVML_HANGS = """#include <unistd.h>
int nvmlInitWithFlags(unsigned f) { for (;;) pause(); }
int nvmlInit_v2(void) { for (;;) pause(); }
int nvmlInit(void) { for (;;) pause(); }
"""
_NVML_CRASHES = """#include <stdlib.h>
int nvmlInitWithFlags(unsigned f) { abort(); } int nvmlInit_v2(void) { abort(); } int nvmlInit(void) { abort(); }
"""


def _bad_pyspy(script: str) -> Callable[[Path, dict[str, str]], Callable[[], None]]:
    """A Python environment beside ours whose py-spy is this script: diag takes the one beside its interpreter."""

    def before(root: Path, env: dict[str, str]) -> Callable[[], None]:
        folder = Path(tempfile.mkdtemp(prefix="venv", dir=root.parent))
        import sys

        base = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name
        (folder / "bin").mkdir()
        (folder / "bin/python").symlink_to(base)
        (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
        site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        site.mkdir(parents=True)
        (site / "beside.pth").write_text(f"{_HERE.parent.parent}\n{sysconfig.get_paths()['purelib']}\n")
        (folder / "bin/py-spy").write_text(script)
        (folder / "bin/py-spy").chmod(0o755)
        env["HARM_PYTHON"] = str(folder / "bin/python")
        return lambda: None

    return before


def _deaf_listeners(run: Running, chance: random.Random) -> str:
    address = run.address()
    count = chance.randrange(1, 40)
    for _ in range(count):
        listener = socket.create_connection(address, timeout=5)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        path = chance.choice([b"/events", b"/events", b"/state", b"/dump"])
        listener.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        run.keep(listener)
    return f"{count} listeners that never read"


def _half_requests(run: Running, chance: random.Random) -> str:
    address = run.address()
    for _ in range(80):
        talker = socket.create_connection(address, timeout=5)
        with contextlib.suppress(OSError):
            garbage = chance.randbytes(chance.randrange(1, 3000))
            talker.sendall(garbage if chance.random() < 0.5 else b"GET /state HTTP/1.1\r\nHos")
        run.keep(talker)
    return "80 connections with garbage or half a request"


def _dumps(run: Running, chance: random.Random) -> str:
    address = run.address()
    for _ in range(chance.randrange(2, 12)):
        asker = socket.create_connection(address, timeout=5)
        asker.sendall(b"GET /dump?deadline=2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        run.keep(asker)
        time.sleep(chance.uniform(0, 0.05))
    return "many dumps at once"


FAULTS: tuple[Fault, ...] = (
    Fault("none", "nothing is done", _nothing),
    Fault("sidecar-killed", "SIGKILL of one sidecar", _kill_one),
    Fault("sidecars-killed", "SIGKILL of all sidecars", _kill_all),
    Fault("sidecars-stopped", "SIGSTOP of sidecars, for good", _stop_some),
    Fault("sidecars-paused", "SIGSTOP and SIGCONT of sidecars", _stop_and_go),
    Fault("hub-killed", "SIGKILL of diag run", _kill_hub, harms_hub=True),
    Fault("hub-paused", "SIGSTOP and SIGCONT of diag run", _stop_hub),
    Fault("hub-paused-over-end", "diag run stopped while the job ends", _stop_hub_over_end),
    Fault("hub-no-memory", "RLIMIT_AS of diag run at what it has", _hub_without_memory, harms_hub=True),
    Fault("hub-no-files", "EMFILE in diag run", _hub_without_files),
    Fault("disk-full", "the disk of the run directory fills", _fill, before=_small_disk, needs_root=True, no_journal=True),
    Fault("disk-read-only", "it is remounted read-only", _read_only, before=_small_disk, needs_root=True, no_journal=True),
    Fault("files-removed", "somebody cleans the run directory", _remove, no_journal=True),
    Fault("clock-jumps", "the wall clock jumps by hours and months", _jump, before=_clock),
    Fault("nvml-hangs", "nvmlInit never returns", _nothing, before=_library("libnvidia-ml.so.1", _NVML_HANGS)),
    Fault("nvml-crashes", "nvmlInit aborts", _nothing, before=_library("libnvidia-ml.so.1", _NVML_CRASHES), harms_hub=True),
    Fault("pyspy-hangs", "py-spy never ends", _dumps, before=_bad_pyspy("#!/bin/sh\nexec sleep 1000\n")),
    Fault("pyspy-garbage", "py-spy prints garbage", _dumps, before=_bad_pyspy("#!/bin/sh\nhead -c 3000000 /dev/urandom\n")),
    Fault("deaf-listeners", "clients of /events, /state and /dump that never read", _deaf_listeners),
    Fault("half-requests", "garbage and half requests at the HTTP port", _half_requests),
    Fault("many-dumps", "a dozen dumps at once", _dumps),
    Fault("log-burst", "100 MB of output at once", _nothing, job=("burst", "100")),
    Fault("rank-churn", "ranks that end and come again", _kill_one, job=("churn",)),
)
