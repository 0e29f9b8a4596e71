"""The world around: clocks, NVML, py-spy."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.labs.harm.fault import Undo
from tests.labs.harm.trial import REPOSITORY, Running


def library(name: str, source: str) -> Callable[[Path, dict[str, str]], Undo]:
    """Compiled into a folder that the loader looks into first."""

    def before(root: Path, env: dict[str, str]) -> Undo:
        folder = root.parent / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fake.c").write_text(source)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / name), str(folder / "fake.c"), "-ldl"],
            check=True,
        )
        env["LD_LIBRARY_PATH"] = str(folder)
        return lambda: None

    return before


def preloaded(name: str, source: str) -> Callable[[Path, dict[str, str]], Undo]:
    def before(root: Path, env: dict[str, str]) -> Undo:
        undo = library(name, source)(root, env)
        env["LD_PRELOAD"] = str(root.parent / "lib" / name)
        return undo

    return before


def nothing(run: Running, chance: random.Random) -> str:
    run.pause(0.1)
    return "as it is"


# --- clocks
# ------------------------------------------------------------------------------------------------------


def clock(root: Path, env: dict[str, str]) -> Undo:
    for name in ("clock", "clock.sidecar"):
        (root.parent / name).write_bytes((0).to_bytes(8, "little", signed=True))
    env["CLOCK_OFFSET_FILE"] = str(root.parent / "clock")
    return preloaded("clock.so", _CLOCK)(root, env)


def _set_clock(run: Running, name: str, seconds: int) -> None:
    with open(run.root.parent / name, "r+b") as file:
        file.write(seconds.to_bytes(8, "little", signed=True))


def jump(run: Running, chance: random.Random) -> str:
    jumps = [chance.choice([-7200, 7200, -30 * 86400, 400 * 86400, 0, -1]) for _ in range(3)]
    for seconds in jumps:
        _set_clock(run, "clock", seconds)
        _set_clock(run, "clock.sidecar", seconds)
        run.pause(0.7)
    return f"clock by {', '.join(map(str, jumps))} s"


def set_sidecars_apart(run: Running, chance: random.Random) -> str:
    """As in a container whose clock is another (a time namespace, a virtual machine that was paused)."""
    told = []
    for _ in range(3):
        seconds = chance.choice([-5, 5, -300, 3600, -86400, 400 * 86400])
        _set_clock(run, "clock.sidecar", seconds)
        told.append(seconds)
        run.pause(0.8)
    return f"the sidecars' clocks off by {', '.join(map(str, told))} s"


# The wall clock alone, by an offset that is read anew at each call (libfaketime breaks the sleep of Python
# 3.11: EINVAL). A sidecar reads another file than the rest.
_CLOCK = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
static int (*real)(clockid_t, struct timespec *);
static void begin(void) {
  if (real) return;
  char line[4096] = "", path[4096] = "";
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  long got = fd >= 0 ? read(fd, line, sizeof line - 1) : 0;
  if (fd >= 0) close(fd);
  const char *name = getenv("CLOCK_OFFSET_FILE");
  if (name) snprintf(path, sizeof path, "%s%s", name, got > 0 && memmem(line, got, "diag.agent.sidecar", 12) ? ".sidecar" : "");
  fd = name ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *map = fd >= 0 ? mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (fd >= 0) close(fd);
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

# --- NVML and py-spy
# -----------------------------------------------------------------------------------------------

NVML_HANGS = """#include <unistd.h>
int nvmlInitWithFlags(unsigned f) { for (;;) pause(); }
int nvmlInit_v2(void) { for (;;) pause(); }
int nvmlInit(void) { for (;;) pause(); }
"""
NVML_CRASHES = """#include <stdlib.h>
int nvmlInitWithFlags(unsigned f) { abort(); } int nvmlInit_v2(void) { abort(); } int nvmlInit(void) { abort(); }
"""


def bad_pyspy(script: str) -> Callable[[Path, dict[str, str]], Undo]:
    """A Python environment beside ours whose py-spy is this script: diag takes the one beside its
    interpreter."""

    def before(root: Path, env: dict[str, str]) -> Undo:
        folder = Path(tempfile.mkdtemp(prefix="venv", dir=root.parent))
        base = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name
        (folder / "bin").mkdir()
        (folder / "bin/python").symlink_to(base)
        (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
        site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        site.mkdir(parents=True)
        # not purelib alone: a .pth may add others
        packages = [path for path in sys.path if path.endswith("-packages")]
        (site / "beside.pth").write_text("\n".join([str(REPOSITORY), *packages]) + "\n")
        (folder / "bin/py-spy").write_text(script)
        (folder / "bin/py-spy").chmod(0o755)
        env["HARM_PYTHON"] = str(folder / "bin/python")
        return lambda: None

    return before
