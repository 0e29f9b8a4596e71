"""The seldom readings and the events of NVML: through a library that answers as a driver does, and as
recorded on H200."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diag.model import Record
from diag.model.observations import GpuHealth, NvlinkSeen, Unparsed, XidReported
from diag.sources.gpu.nvml import NvmlReader, parse
from diag.text.errors import SourceUnavailable
from tests.sources.test_nvml import FAKE, Clock

CAPTURE = Path(__file__).parents[1] / "captures" / "gpu" / "nvml_health.json"

# Beside what a sample asks. FAKE_LOG is a file that gets a letter for each call that is refused (R) and for
# each round (H). Numbers are those of an H200; GPU 1 has a link down, a pending row and a Xid 79 as its first
# event.
MORE = r"""
static void note(const char *what) { FILE *f = fopen(getenv("FAKE_LOG"), "a"); if (f) { fputs(what, f); fclose(f); } }
int nvmlDeviceGetEccMode(void *d, unsigned *now, unsigned *next) { note("H"); *now = *next = 1; return 0; }
int nvmlDeviceGetTotalEccErrors(void *d, int kind, int span, unsigned long long *n) {
    *n = gpu(d) * 100 + kind * 10 + span; return 0;
}
int nvmlDeviceGetRemappedRows(void *d, unsigned *c, unsigned *u, unsigned *p, unsigned *f) {
    *c = 1; *u = 2; *p = gpu(d); *f = 0; return 0;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *d, unsigned *p) {
    note("R"); if (is("fragile")) raise(SIGSEGV); return 3;
}
struct violation { unsigned long long reference, time; };
int nvmlDeviceGetViolationStatus(void *d, int policy, struct violation *v) { v->time = policy ? 2500000000ull : 0; return 0; }
int nvmlDeviceGetTemperatureThreshold(void *d, int which, unsigned *t) { *t = which == 1 ? 89 : 0; return which == 1 ? 0 : 3; }
int nvmlDeviceGetMaxClockInfo(void *d, int type, unsigned *c) { *c = 1980; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *g) { *g = 4; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *g) { *g = 5; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *w) { *w = 8; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *w) { *w = 16; return 0; }
int nvmlDeviceGetPcieReplayCounter(void *d, unsigned *n) { *n = 7; return 0; }
int nvmlDeviceGetNvLinkState(void *d, unsigned link, unsigned *active) {
    *active = !(gpu(d) && link == 1); return link < 3 ? 0 : 2;
}
int nvmlDeviceGetNvLinkErrorCounter(void *d, unsigned link, int counter, unsigned long long *n) {
    *n = link * 10 + counter; return 0;
}
struct field {
    unsigned id, scope; long long at, latency; unsigned type, status; union { unsigned u; unsigned long long ull; } value;
};
int nvmlDeviceGetFieldValues(void *d, int n, struct field *f) {
    f->status = 0; f->type = 1;
    if (f->id == 82) f->value.u = 33; else if (f->id == 230) f->value.u = gpu(d) ? 4 : 0; else f->status = 3;
    return 0;
}
struct event { void *d; unsigned long long type, data; unsigned gi, ci; };
int nvmlEventSetCreate(void **set) { *set = (void *)1; return is("noevents") ? 3 : 0; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set) { return types == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, struct event *e, unsigned ms) {
    static int told;
    if (told++) { usleep(ms * 1000); return 10; }
    e->d = (void *)2; e->type = 8; e->data = 79; return 0;
}
int nvmlEventSetFree(void *set) { return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml")
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "fake.c").write_text(FAKE + MORE)
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "fake.c"], check=True
    )
    return folder


@pytest.fixture
def watched(library: Path, tmp_path: Path) -> Iterator[Any]:
    """Makes readers that read the health too; each question to them is a new one."""
    made: list[NvmlReader] = []

    def make(mode: str = "", health_seconds: float = 0.05) -> tuple[NvmlReader, Clock, Path]:
        clock, log = Clock(), tmp_path / "calls"
        environ = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": mode, "FAKE_LOG": str(log)}
        made.append(NvmlReader(interval=0.0, health_seconds=health_seconds, environ=environ, clock=clock))
        return made[-1], clock, log

    yield make
    for one in made:
        one.close()


def until(reader: NvmlReader, kind: type, number: int) -> list[Any]:
    """Facts of this kind from as many samples as it takes; a test that waits for ever is ended by its time
    limit."""
    facts: list[Any] = []
    while len(facts) < number:
        payload = json.loads(json.dumps(reader.latest(30)))
        facts += [fact for fact in parse(Record("nvml", payload)) if isinstance(fact, kind)]
    return facts


def test_health_of_each_gpu_comes_with_a_sample(watched: Any) -> None:
    reader, _, _ = watched()

    first, second = until(reader, GpuHealth, 2)[:2]

    assert first == GpuHealth(
        rank=None,
        index=0,
        uuid="GPU-0",
        pci_bus_id="00000000:00:06.0",
        ecc_enabled=True,
        ecc_corrected_volatile=0,
        ecc_corrected_aggregate=1,
        ecc_uncorrected_volatile=10,
        ecc_uncorrected_aggregate=11,
        remapped_rows_corrected=1,
        remapped_rows_uncorrected=2,
        remap_pending=False,
        remap_failed=False,
        retired_pages_pending=None,
        thermal_violation_seconds=2.5,
        power_violation_seconds=0.0,
        slowdown_celsius=89.0,
        memory_celsius=33.0,
        max_sm_clock_hertz=1_980_000_000,
        pcie_generation=4,
        pcie_max_generation=5,
        pcie_width=8,
        pcie_max_width=16,
        pcie_replays=7,
        nvlinks=(
            NvlinkSeen(0, True, 2, 0, 1),
            NvlinkSeen(1, True, 12, 10, 11),
            NvlinkSeen(2, True, 22, 20, 21),
        ),
        recovery_action="none",
    )
    assert (second.index, second.remap_pending, second.recovery_action) == (1, True, "drain_reset")
    assert [link.active for link in second.nvlinks] == [True, False, True]


def test_call_that_the_driver_refuses_is_made_once(watched: Any) -> None:
    reader, _, log = watched()

    until(reader, GpuHealth, 8)

    calls = log.read_text()
    assert calls.count("H") >= 8 and calls.count("R") == 2  # once for each GPU


def test_xid_comes_as_an_event_with_its_gpu(watched: Any) -> None:
    reader, _, _ = watched()

    (event,) = until(reader, XidReported, 1)

    assert (event.pci_bus_id, event.xid, event.pid, event.origin) == ("00000000:00:07.0", 79, None, "nvml")


def test_driver_without_events_is_sampled_all_the_same(watched: Any) -> None:
    reader, _, _ = watched("noevents")

    assert len(until(reader, GpuHealth, 4)) >= 4


def test_gpu_that_is_lost_is_named(watched: Any) -> None:
    reader, _, _ = watched("lost")

    reasons = {"GPU 1: GPU is lost"}  # of its samples; its health is read more seldom
    while reasons == {"GPU 1: GPU is lost"}:
        reasons |= {fact.reason for fact in until(reader, Unparsed, 1)}

    assert "health of GPU 1: GPU is lost" in reasons


def test_driver_that_crashes_at_the_seldom_calls_is_sampled_without_them(watched: Any) -> None:
    reader, clock, log = watched("fragile", health_seconds=60.0)
    reasons = []
    while not reasons:  # the crash comes with one of the first samples
        try:
            reader.latest(30)
        except SourceUnavailable as error:
            reasons.append(error.reason)
    clock.now += 11

    assert reasons[0].startswith("NVML crashed its process (signal 11")
    for _ in range(5):
        assert len(reader.latest(30)["gpus"]) == 2
    assert log.read_text().count("R") == 1


def test_no_health_is_read_for_who_does_not_ask(watched: Any) -> None:
    reader, _, log = watched(health_seconds=0.0)

    for _ in range(3):
        assert not {"health", "events"} & set(reader.latest(30))
    assert not log.exists()


def test_recorded_answers_of_two_h200_are_understood() -> None:
    facts = list(parse(Record("nvml", json.loads(CAPTURE.read_text()))))

    gpus = [fact for fact in facts if isinstance(fact, GpuHealth)]
    assert [(gpu.index, gpu.ecc_enabled, gpu.remap_pending, gpu.recovery_action) for gpu in gpus] == [
        (0, True, False, "none"),
        (1, True, False, "none"),
    ]
    assert all(len(gpu.nvlinks) == 18 and all(link.active for link in gpu.nvlinks) for gpu in gpus)
    assert gpus[0].retired_pages_pending is None  # Hopper remaps rows and retires no pages
    assert [(fact.xid, fact.pci_bus_id) for fact in facts if isinstance(fact, XidReported)] == [
        (43, "00000000:00:07.0"),
        (31, "00000000:00:07.0"),
        (13, "00000000:00:07.0"),
    ]
    assert len(facts) == 5
