"""A node whose clock is ahead: a library before the others, because Linux has one wall clock for all
namespaces.

libfaketime is not used: 0.9.10 (Debian 12) makes Python's time.sleep fail (EINVAL) or its waits never end.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += AHEAD;
    return failed;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


def ahead(folder: Path, seconds: int) -> dict[str, str]:
    """Environment for a node whose clock is so much ahead."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to give a node another clock (make cluster-packages)")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE)
    words = ["gcc", "-O1", "-shared", "-fPIC", f"-DAHEAD={seconds}", "-o", str(library), str(source)]
    subprocess.run(words, check=True, capture_output=True)
    return {"LD_PRELOAD": str(library)}
