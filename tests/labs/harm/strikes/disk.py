"""The disk of the run directory: full, out of inodes, read-only, slow, frozen, tidied up by somebody,
rotated."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.labs.harm.fault import Undo
from tests.labs.harm.judge import Outcome
from tests.labs.harm.strikes.world import preloaded
from tests.labs.harm.trial import Running


def memory_disk(options: str, place: str = "runs") -> Callable[[Path, dict[str, str]], Undo]:
    """A tmpfs at this folder of the trial."""

    def before(root: Path, env: dict[str, str]) -> Undo:
        mounted = root.parent / place
        mounted.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mounted)], check=True)
        return lambda: subprocess.run(["umount", "-l", str(mounted)], check=False) and None

    return before


def fill(run: Running, chance: random.Random) -> str:
    left = chance.choice([0, 0, 4096, 65536])
    _fill(run.root / "filler", left)
    return f"disk of the run directory full to {left} bytes"


def _fill(filler: Path, left: int) -> None:
    free = shutil.disk_usage(filler.parent).free
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range((free - left) // 65536 + 2):
            file.write(bytes(65536))
    if left:
        with contextlib.suppress(OSError):
            os.truncate(filler, max(0, filler.stat().st_size - left))


def fill_terminal(run: Running, chance: random.Random) -> str:
    """`diag run ... > FILE` on a disk that is full for a while."""
    filler = run.terminal.parent / "filler"
    _fill(filler, 0)
    seconds = chance.uniform(0.5, 2.0)
    run.pause(seconds)
    filler.unlink()
    return f"disk of the terminal's file full for {seconds:.1f} s"


def use_up_inodes(run: Running, chance: random.Random) -> str:
    folder = run.root / "filler"
    count = 0
    with contextlib.suppress(OSError):
        folder.mkdir()
        while count < 100_000:
            (folder / str(count)).touch()
            count += 1
    return f"{count} files, and no inode left"


def read_only(run: Running, chance: random.Random) -> str:
    done = subprocess.run(
        ["mount", "-o", "remount,ro", str(run.root)], capture_output=True, text=True, check=False
    )
    return (
        "run directory read-only"
        if done.returncode == 0
        else f"not remounted, files are open: {done.stderr.strip()}"
    )


def remove(run: Running, chance: random.Random) -> str:
    folder = run.run_dir()
    for each in folder.rglob("*"):
        if each.is_file() and not each.name.endswith(".log"):
            each.unlink(missing_ok=True)
    return "files of the run directory removed"


def remove_all(run: Running, chance: random.Random) -> str:
    shutil.rmtree(run.run_dir(), ignore_errors=True)
    return "the run directory removed"


# --- one that stands still
# ---------------------------------------------------------------------------------------


def real_disk(root: Path, env: dict[str, str]) -> Undo:
    """An ext4 of its own, which can be frozen: then whoever writes to it waits."""
    image = root.parent / "disk.img"
    root.mkdir(parents=True, exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(192 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(root)], check=True)

    def undo() -> None:
        subprocess.run(["fsfreeze", "-u", str(root)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(root)], check=False)

    return undo


def freeze(run: Running, chance: random.Random) -> str:
    """For as long as a network file system that lost its server: the job's own output is on it, too, and
    waits."""
    seconds = chance.uniform(0.5, 3.0)
    subprocess.run(["fsfreeze", "-f", str(run.root)], check=True)
    try:
        run.pause(seconds)
    finally:
        subprocess.run(["fsfreeze", "-u", str(run.root)], check=True)
    return f"disk of the run directory stood still for {seconds:.1f} s"


# Of diag's own processes alone (the job's output goes to the same disk, and would wait as well): each
# opening, write and rename below the run root but of output*.log takes as long as HARM_DISK says, in
# milliseconds.
_SLOW = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static volatile long *delay;
static int ours = -1;
static const char *root;
static void begin(void) {
  if (ours >= 0) return;
  char line[4096] = "";
  int fd = syscall(257, -100, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
  long got = fd >= 0 ? read(fd, line, sizeof line - 1) : 0;
  if (fd >= 0) close(fd);
  ours = got > 0 && (memmem(line, got, "diag\\0run", 8) || memmem(line, got, "diag.agent.sidecar", 12));
  root = getenv("HARM_DISK_ROOT");
  const char *name = getenv("HARM_DISK");
  fd = name ? syscall(257, -100, name, O_RDONLY | O_CLOEXEC, 0) : -1;
  void *map = fd >= 0 ? mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (map != MAP_FAILED) delay = map;
}
static void wait_for(const char *path) {
  if (!ours || !delay || !*delay || !root || !path) return;
  if (strncmp(path, root, strlen(root)) || strstr(path, "/output")) return;
  struct timespec pause = {*delay / 1000, (*delay % 1000) * 1000000L};
  nanosleep(&pause, 0);
}
static void wait_fd(int fd) {
  if (fd < 3 || !ours || !delay || !*delay) return;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  long got = readlink(link, path, sizeof path - 1);
  if (got > 0) { path[got] = 0; wait_for(path); }
}
ssize_t write(int fd, const void *data, size_t size) {
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  begin(); wait_fd(fd);
  return real(fd, data, size);
}
int open64(const char *path, int flags, ...) {
  static int (*real)(const char *, int, ...);
  if (!real) real = dlsym(RTLD_NEXT, "open64");
  va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more);
  begin(); wait_for(path);
  return real(path, flags, mode);
}
int rename(const char *from, const char *to) {
  static int (*real)(const char *, const char *);
  if (!real) real = dlsym(RTLD_NEXT, "rename");
  begin(); wait_for(to);
  return real(from, to);
}
"""


def slow_disk(root: Path, env: dict[str, str]) -> Undo:
    delay = root.parent / "delay"
    delay.write_bytes((0).to_bytes(8, "little"))
    env |= {"HARM_DISK": str(delay), "HARM_DISK_ROOT": str(root)}
    return preloaded("disk.so", _SLOW)(root, env)


def slow(run: Running, chance: random.Random) -> str:
    milliseconds = chance.choice([20, 200, 1000, 4000])
    with open(run.root.parent / "delay", "r+b") as file:
        file.write(milliseconds.to_bytes(8, "little"))
    run.pause(chance.uniform(1.0, 4.0))
    with open(run.root.parent / "delay", "r+b") as file:
        file.write((0).to_bytes(8, "little"))
    return f"diag's own writes took {milliseconds} ms each"


# --- logs that are rotated
# -----------------------------------------------------------------------------------------


def log_folder(root: Path, env: dict[str, str]) -> Undo:
    (root.parent / "log").mkdir()
    return lambda: None


def rotate_rank_logs(run: Running, chance: random.Random) -> str:
    """Files that ranks print to, followed by diag: what logrotate and people do to them."""
    told = []
    for turn in range(chance.randrange(1, 5)):
        for log in sorted((run.root.parent / "log").glob("rank.*.log")):
            how = chance.choice(
                [
                    "renamed",
                    "copied and cut",
                    "removed",
                    "renamed, another in its place",
                    "a FIFO in its place",
                ]
            )
            told.append(how)
            _rotate(log, how, turn)
        run.pause(chance.uniform(0.1, 0.6))
    return f"logs of ranks {', '.join(told)}"


def _rotate(log: Path, how: str, turn: int) -> None:
    old = log.with_name(f"{log.name}.{turn}")
    if how == "copied and cut":
        with open(log, "rb+") as file:
            old.write_bytes(file.read())
            file.truncate(0)
        return
    log.rename(old)  # a name that is removed is one that only the test still knows
    if how == "renamed, another in its place":
        log.write_bytes(os.urandom(300) + b"\n")
    elif how == "a FIFO in its place":
        os.mkfifo(log)


def rank_logs_whole(run: Running, outcome: Outcome) -> None:
    """diag writes nothing into them: the ranks' lines, and no other but what the test put there."""
    for path in (run.root.parent / "log").iterdir():
        if path.is_file() and b"diag" in path.read_bytes():
            outcome.wrong.append(f"{path.name} has words of diag")


def rotate_output(run: Running, chance: random.Random) -> str:
    """The file that the job's output goes to, by somebody who rotates all that is called *.log."""
    (log,) = run.run_dir().glob("output.log")
    how = chance.choice(["renamed", "removed", "renamed, another in its place"])
    kept = run.root.parent / "rotated"
    os.link(log, kept)
    log.unlink()
    if how == "renamed, another in its place":
        log.write_bytes(b"of another\n")
    elif how == "renamed":
        os.link(kept, log.with_name("output.log.1"))
    return f"output.log {how}"


def cut_output(run: Running, chance: random.Random) -> str:
    """copytruncate: what came between copy and cut, and what was not shown yet, is lost to those who do it."""
    (log,) = run.run_dir().glob("output.log")
    times = chance.randrange(1, 4)
    with open(run.root.parent / "rotated", "ab") as kept:
        for _ in range(times):
            with open(log, "rb+") as file:
                kept.write(file.read())
                kept.flush()
                file.truncate(0)
            run.pause(chance.uniform(0.1, 0.8))
    return f"output.log copied and cut {times} times"


# Lines that are lost for good at each cut: those of the moment between copy and cut, and not yet shown ones.
_LOST_A_CUT = 50


def output_cut_whole(run: Running, outcome: Outcome) -> None:
    """What is in the copy or on the terminal is all but some lines at each cut; on the terminal none is shown
    twice."""
    if not (run.root.parent / "rotated").exists():
        return
    shown, kept = run.terminal.read_bytes(), (run.root.parent / "rotated").read_bytes()
    for told in run.told:
        line = rb"(?m)^rank %d attempt %d line (\d+)$" % (told["rank"], told["attempt"])
        first, second = ([int(number) for number in re.findall(line, text)] for text in (shown, kept))
        missing = told["lines"] - len({*first, *second})
        if first != sorted(set(first)) or missing > 3 * _LOST_A_CUT:
            outcome.wrong.append(
                f"rank {told['rank']}: {missing} of {told['lines']} lines lost, in order and once: "
                f"{first == sorted(set(first))}"
            )
