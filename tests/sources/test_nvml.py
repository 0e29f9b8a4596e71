from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import Record
from diag.model.observations import GpuHealth, GpuSample, Unparsed, XidReported
from diag.sources.gpu.nvml import NvmlReader, parse
from diag.text.errors import SourceUnavailable

# NVML as pynvml calls it, for a machine with two GPUs. FAKE_NVML=hang|crash|lost|nodriver|slowstart picks
# what GPU 1 does; numbers are those of an idle-waiting H200 (nvidia-smi, driver 580.159.04, 2026-11-20: 126 W
# of 700 W, 39 C).
FAKE = r"""
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <signal.h>
static int is(const char *mode) { const char *m = getenv("FAKE_NVML"); return m && !strcmp(m, mode); }
static long gpu(void *d) { return (long)d - 1; }
int nvmlInitWithFlags(unsigned f) {
    puts("the driver prints to stdout"); fflush(stdout);
    if (is("slowstart")) for (;;) pause();
    return is("nodriver") ? 9 : 0;
}
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "580.159.04"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) {
    if (is("lost") && i == 1) return 15;
    *d = (void *)(long)(i + 1); return 0;
}
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { snprintf(s, n, "GPU-%ld", gpu(d)); return 0; }
int nvmlDeviceGetName(void *d, char *s, unsigned n) { snprintf(s, n, "NVIDIA H200"); return 0; }
int nvmlDeviceGetPciInfo_v3(void *d, char *p) {
    memset(p, 0, 68); sprintf(p + 36, "00000000:00:0%ld.0", 6 + gpu(d)); return 0;
}
int nvmlDeviceGetUtilizationRates(void *d, unsigned *u) {
    u[0] = gpu(d) ? 0 : 100; u[1] = 0;
    if (gpu(d) == 1 && is("hang")) {
        /* like the driver's: nothing but SIGKILL ends it */
        sigset_t all; sigfillset(&all); sigprocmask(SIG_BLOCK, &all, 0);
        for (;;) pause();
    }
    if (gpu(d) == 1 && is("crash")) raise(SIGSEGV);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) {
    m[0] = 150754820096ull; m[1] = 1; m[2] = 1677656064ull; return 0;
}
int nvmlDeviceGetPowerUsage(void *d, unsigned *w) { *w = 126123; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *w) { *w = 700000; return is("unsupported") ? 3 : 0; }
int nvmlDeviceGetClockInfo(void *d, int type, unsigned *c) { *c = type == 1 ? 1980 : 1; return 0; }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *t) { *t = 39; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *r) { *r = 1; return 0; }
struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *p) {
    if (gpu(d) == 1) { *n = 0; return 0; }
    if (!p) { *n = 1; return 7; }
    p[0].pid = 751; p[0].memory = 1774190592ull; *n = 1; return 0;
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml")
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "fake.c").write_text(FAKE)
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "fake.c"], check=True
    )
    return folder


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(library: Path, clock: Clock) -> Iterator[Any]:
    """Makes readers of the fake library; the helper dies with the test."""
    made: list[NvmlReader] = []

    def make(mode: str = "", **options: Any) -> NvmlReader:
        environ = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": mode}
        made.append(NvmlReader(interval=5.0, environ=environ, clock=clock, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_two_healthy_gpus_are_sampled(reader: Any) -> None:
    payload = reader().latest(30)

    first, second = parse(Record("nvml", payload))
    assert first == GpuSample(
        rank=None,
        index=0,
        uuid="GPU-0",
        pci_bus_id="00000000:00:06.0",
        name="NVIDIA H200",
        utilization_ratio=1.0,
        memory_used_bytes=1677656064,
        memory_total_bytes=150754820096,
        power_watts=126123 * 0.001,
        power_limit_watts=700.0,
        sm_clock_hertz=1_980_000_000,
        temperature_celsius=39.0,
        throttle_reasons=1,
        pids=(751,),
        process_memory=((751, 1774190592),),
    )
    assert isinstance(second, GpuSample) and (second.utilization_ratio, second.pids) == (0.0, ())
    assert payload["driver"] == "580.159.04"


def test_sample_younger_than_the_interval_is_given_again(reader: Any, clock: Clock) -> None:
    healthy = reader()
    first = healthy.latest(30)
    again = healthy.latest(30)
    clock.now += 6
    later = healthy.latest(30)

    assert again is first
    assert later is not first and later == first


def test_what_the_gpu_does_not_support_is_none_and_the_rest_is_there(reader: Any) -> None:
    samples = list(parse(Record("nvml", reader("unsupported").latest(30))))

    assert [getattr(sample, "power_limit_watts", 0) for sample in samples] == [None, None]
    assert [getattr(sample, "power_watts", 0) for sample in samples] == [pytest.approx(126.123)] * 2


def test_lost_gpu_is_named_and_the_other_is_sampled(reader: Any) -> None:
    healthy, lost = parse(Record("nvml", reader("lost").latest(30)))

    assert isinstance(healthy, GpuSample)
    assert isinstance(lost, Unparsed) and lost.reason == "GPU 1: GPU is lost"


def test_hanging_gpu_is_named_within_the_deadline_and_the_helper_is_killed(reader: Any, clock: Clock) -> None:
    sick = reader("hang")
    with pytest.raises(SourceUnavailable, match="still starting"):
        sick.latest(0)
    helper = sick._helper

    while True:
        began = time.monotonic()
        with pytest.raises(SourceUnavailable) as failed:
            sick.latest(1)
        if failed.value.reason != "NVML is still starting":  # a machine under load may take its time
            break

    assert failed.value.reason == "NVML did not answer for 1 s (GPU 1)"
    assert "Xid" in failed.value.remedy
    assert time.monotonic() - began < 5
    assert helper.poll() == -signal.SIGKILL
    assert sick._helper is None and not sick._abandoned


def test_failure_is_repeated_without_a_new_helper_until_the_backoff_is_over(
    reader: Any, clock: Clock
) -> None:
    sick = reader("crash")
    reasons = []
    for _ in range(3):
        with pytest.raises(SourceUnavailable) as failed:
            sick.latest(30)
        reasons.append((failed.value.reason, sick._failures))
        clock.now += 5.5  # the first backoff is 10 s, so the third question starts a helper again

    crashed = f"NVML crashed its process (signal 11: {signal.strsignal(11)})"
    assert reasons == [(crashed, 1), (crashed, 1), (crashed, 2)]


def test_missing_driver_is_said_and_tried_again_later(reader: Any, clock: Clock) -> None:
    sick = reader("nodriver")
    with pytest.raises(SourceUnavailable) as failed:
        sick.latest(30)
    sick._environ["FAKE_NVML"] = ""
    clock.now += 11

    assert failed.value.reason == "NVML cannot start: Driver Not Loaded"
    assert len(sick.latest(30)["gpus"]) == 2


def test_driver_that_never_starts_is_given_up(reader: Any) -> None:
    sick = reader("slowstart", start_seconds=0.5)
    reasons = []
    for _ in range(2):
        with pytest.raises(SourceUnavailable) as failed:
            sick.latest(0.3)
        reasons.append(failed.value.reason)

    assert reasons == ["NVML is still starting", "NVML did not start within 0.5 s"]


def test_helper_that_cannot_be_killed_is_said_and_not_joined_by_another(reader: Any, clock: Clock) -> None:
    # given a helper that survives SIGKILL, as one in D state does until the driver lets it go
    stuck = reader("hang")
    survivor = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    stuck._abandoned.append(survivor)

    with pytest.raises(SourceUnavailable) as failed:
        stuck.latest(30)
    survivor.communicate()
    stuck._environ["FAKE_NVML"] = ""
    after = stuck.latest(30)

    assert (
        failed.value.reason == f"NVML is stuck in the kernel (helper process {survivor.pid} cannot be killed)"
    )
    assert len(after["gpus"]) == 2


def test_helper_ends_with_its_parent_also_while_nvml_hangs(library: Path) -> None:
    # given a hub that asked a hanging NVML and was then killed
    code = (
        "import sys, time\nfrom diag.sources.gpu.nvml import NvmlReader\nfrom diag.text.errors import SourceUnavailable\n"
        "reader = NvmlReader()\n"
        "while reader._ready is None:\n"
        "    try: reader._start(0.0) if reader._helper is None else reader._wait_for_start(time.monotonic() + 60)\n"
        "    except SourceUnavailable: pass\n"
        "reader._helper.stdin.write(b'\\n')\n"
        "reader._message(time.monotonic() + 60)\n"  # GPU 0 answered, so it is in GPU 1 now
        "print(reader._helper.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    home = str(Path(__file__).parents[2])
    environ = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": "hang", "PYTHONPATH": home}
    hub = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    assert hub.stdout is not None
    helper = os.pidfd_open(int(hub.stdout.readline()))

    hub.kill()
    hub.communicate()

    assert select.select([helper], [], [], 20)[0]  # readable: it ended
    os.close(helper)


def test_machine_without_the_library_is_asked_once(clock: Clock, tmp_path: Path) -> None:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    probe = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"]
    if subprocess.run(probe, check=False, env=environ, capture_output=True).returncode == 0:
        pytest.skip("this machine has NVML")
    reader = NvmlReader(environ=environ, clock=clock)
    reasons = []
    for _ in range(2):
        with pytest.raises(SourceUnavailable) as failed:
            reader.latest(30)
        reasons.append(failed.value.reason)
        clock.now += 1e6

    assert reasons == ["no NVML library"] * 2
    assert reader._helper is None and reader._failures == 1


def test_payload_is_json(reader: Any) -> None:
    payload = reader().latest(30)

    assert json.loads(json.dumps(payload)) == payload


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
NAMES = (
    "uuid",
    "pci",
    "name",
    "util",
    "mem_used",
    "power_mw",
    "sm_clock_mhz",
    "temp",
    "throttle",
    "pids",
    "error",
    "pid_mem",
    "sm_util",
    "sm_occupancy",
    "cores",
)
HEALTH_NAMES = (
    "uuid",
    "pci",
    "ecc_mode",
    "ecc",
    "remapped",
    "violation_ns",
    "slowdown_temp",
    "pcie",
    "nvlinks",
    "recovery",
    "error",
)
HEALTH = st.fixed_dictionaries({"index": st.integers() | JSON}, optional=dict.fromkeys(HEALTH_NAMES, JSON))
EVENT = st.fixed_dictionaries({"xid": st.integers() | JSON}, optional={"pci": JSON})
GPU = st.fixed_dictionaries({"index": st.integers() | JSON}, optional=dict.fromkeys(NAMES, JSON))


@settings(deadline=None, max_examples=60)
@given(
    JSON
    | st.fixed_dictionaries(
        {"gpus": JSON | st.lists(GPU | JSON)},
        optional={"health": st.lists(HEALTH | JSON), "events": st.lists(EVENT | JSON)},
    )
)
def test_parse_raises_for_nothing(payload: Any) -> None:
    for found in parse(Record("nvml", payload)):
        assert isinstance(found, (GpuSample, GpuHealth, XidReported, Unparsed))
