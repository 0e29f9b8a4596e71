"""GPM's counters: through a library that answers as a driver does, and without one where Python lacks the
functions."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diag.agent.hub import Hub
from diag.agent.samplers.devices import GpuSampler
from diag.agent.samplers.sampler import Reporter
from diag.model import Placement, Record
from diag.model.observations import GpuSample
from diag.settings import load
from diag.sources.gpu.nvml import NvmlReader, parse
from diag.sources.gpu.nvml_gpm import Gpm
from diag.sources.host import run as run_source
from diag.state.job import JobState
from diag.text.errors import SourceUnavailable
from tests.sources.test_nvml import FAKE, Clock

CAPTURE = Path(__file__).parents[1] / "captures" / "gpu" / "gpm_waits.jsonl"

# GPU 0 has the counters, GPU 1 is of an earlier kind. FAKE_LOG gets a letter for each sample made (A) and
# given back (F), and for each question whether a GPU can (Q). A sample is the number of the reading; figures
# grow with the distance of two.
MORE = r"""
static void note(const char *what) { FILE *f = fopen(getenv("FAKE_LOG"), "a"); if (f) { fputs(what, f); fclose(f); } }
struct support { unsigned version, can; };
int nvmlGpmQueryDeviceSupport(void *d, struct support *s) {
    note("Q"); if (s->version != 1) return 25; s->can = gpu(d) == 0; return is("mig") ? 3 : 0;
}
int nvmlDeviceGetNumGpuCores(void *d, unsigned *n) { *n = 16896; return is("nocores") ? 3 : 0; }
int nvmlGpmSampleAlloc(long **s) { note("A"); *s = calloc(1, 8); return 0; }
int nvmlGpmSampleFree(long *s) { note("F"); free(s); return 0; }
int nvmlGpmSampleGet(void *d, long *s) {
    static long reading;
    if (is("gpmcrash")) raise(SIGSEGV);
    *s = ++reading; return is("gpmfails") && reading == 2 ? 15 : 0;
}
struct metric { unsigned id; int ret; double value; char *info[3]; };
struct metrics { unsigned version, count; long *before, *after; struct metric m[1]; };
int nvmlGpmMetricsGet(struct metrics *g) {
    if (g->version != 1) return 25;
    if (*g->after != *g->before + 1) return 2;
    for (unsigned i = 0; i < g->count; i++) {
        g->m[i].ret = 0;
        if (g->m[i].id == 2) g->m[i].value = 18.18060012;
        else if (g->m[i].id == 3) { g->m[i].value = is("nan") ? 0.0 / 0.0 : 4.8292; g->m[i].ret = is("part") ? 3 : 0; }
        else return 2;
    }
    return 0;
}
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml")
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("gpm")
    (folder / "fake.c").write_text(FAKE + MORE)
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "fake.c"], check=True
    )
    return folder


@pytest.fixture
def looks(library: Path, tmp_path: Path) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """GPU payloads of GPU 0, one for each word in `closer`: True, False."""
    made: list[NvmlReader] = []

    def take(*closer: bool, mode: str = "", gpu: int = 0) -> list[dict[str, Any]]:
        clock = Clock()
        environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML": mode,
            "FAKE_LOG": str(tmp_path / "log"),
        }
        made.append(NvmlReader(interval=5.0, environ=environ, clock=clock))
        found = []
        for one in closer:
            clock.now += 6
            found.append(made[-1].latest(30, closer=one)["gpus"][gpu])
        return found

    yield take
    for one in made:
        one.close()


def log(tmp_path: Path) -> str:
    path = tmp_path / "log"
    return path.read_text() if path.exists() else ""


def shares(payload: dict[str, Any]) -> tuple[float | None, float | None, int | None]:
    sample = next(iter(parse(Record("nvml", {"gpus": [payload]}))))
    assert isinstance(sample, GpuSample)
    return sample.sm_utilization_ratio, sample.sm_occupancy_ratio, sample.sm_count


def test_figures_of_the_time_between_two_closer_looks_come_with_the_second(looks: Any) -> None:
    first, second, third = looks(True, True, True)

    assert "sm_util" not in first
    assert (second["sm_util"], second["sm_occupancy"], second["cores"]) == (18.1806, 4.8292, 16896)
    assert third == second
    assert shares(second) == (pytest.approx(0.181806), pytest.approx(0.048292), 132)
    assert second["power_mw"] == first["power_mw"] == 126123


def test_healthy_job_asks_for_none_of_it(looks: Any, tmp_path: Path) -> None:
    payloads = looks(False, False, False)

    assert log(tmp_path) == ""
    assert all("sm_util" not in payload for payload in payloads)
    assert shares(payloads[-1]) == (None, None, None)


def test_watch_of_the_node_asks_while_told_to(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LD_LIBRARY_PATH", str(library)), ("FAKE_LOG", str(tmp_path / "log"))):
        monkeypatch.setenv(name, value)
    told: queue.SimpleQueue[Record] = queue.SimpleQueue()
    gpus = GpuSampler(Reporter(told.put, "node-0"), 0.05)
    gpus.start()
    try:
        gpus.tend(True, JobState())
        await_gpu(told, lambda payload: "sm_util" in payload)
        gpus.tend(False, JobState())
        await_gpu(told, lambda payload: "sm_util" not in payload)
    finally:
        gpus.close()


def test_hub_asks_once_progress_is_overdue_and_no_longer_when_it_goes_on(tmp_path: Path) -> None:
    now = 1000.0
    hub = Hub(load(run_root=tmp_path), None, talk=lambda line: None)
    hub.clock = lambda: now
    place = Placement(0, 0, 1, "node-0", 1000, 777, 0, 1, "torchrun")
    hub.engine.feed(replace(run_source.rank_found(place, "python train.py", {}), at=now))
    asked = []
    for now in (1001.0, 1006.0):  # noqa: B007 - the hub's clock
        hub._choose_mode()
        asked.append(hub._samplers[GpuSampler].closer)
    hub.engine.feed(Record("output", {"stream": "stdout", "lines": [[STEP, 0]]}, rank=0, at=now))
    hub._choose_mode()

    assert [*asked, hub._samplers[GpuSampler].closer] == [False, True, False]


# Megatron of ms-swift 3.12.6: tests/captures/logs/megatron_dpo_3.12.6.log
STEP = " [2026-11-21 00:17:14] iteration        1/       8 | consumed samples:            8 |"


def await_gpu(told: queue.SimpleQueue[Record], wanted: Callable[[dict[str, Any]], bool]) -> None:
    while True:
        record = told.get(timeout=30)
        if record.source == "nvml" and wanted(record.payload["gpus"][0]):
            return


def test_samples_are_given_back_and_the_time_between_two_suspicions_is_in_no_figure(
    looks: Any, tmp_path: Path
) -> None:
    payloads = looks(True, True, False, True, True)

    assert ["sm_util" in payload for payload in payloads] == [False, True, False, False, True]
    assert log(tmp_path) == "QAQ" + "AF" + "F" + "A" + "AF"  # GPU 1 only asked


def test_gpu_that_cannot_is_asked_once_and_sampled_as_before(looks: Any, tmp_path: Path) -> None:
    with_counters = looks(True, True, True, gpu=1)

    assert with_counters[0] == with_counters[2] and "sm_util" not in with_counters[2]
    assert log(tmp_path).count("Q") == 2  # one of each GPU


def test_mig_leaves_the_sample_as_it_was(looks: Any, tmp_path: Path) -> None:
    (plain,) = looks(False)
    assert looks(True, True, mode="mig")[-1] == plain
    assert "A" not in log(tmp_path)


def test_reading_that_fails_costs_its_figures_only(looks: Any, tmp_path: Path) -> None:
    payloads = looks(True, True, True, True, mode="gpmfails")

    assert ["sm_util" in payload for payload in payloads] == [False, False, False, True]
    assert log(tmp_path).count("A") - log(tmp_path).count("F") == 1


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("part", (pytest.approx(0.181806), None, 132)),
        ("nan", (pytest.approx(0.181806), None, 132)),
        ("nocores", (pytest.approx(0.181806), pytest.approx(0.048292), None)),
    ],
)
def test_what_is_missing_is_none_and_the_rest_is_there(looks: Any, mode: str, left: Any) -> None:
    assert shares(looks(True, True, mode=mode)[-1]) == left


def test_crash_in_these_calls_is_the_last_one(library: Path, tmp_path: Path) -> None:
    clock = Clock()
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": "gpmcrash",
        "FAKE_LOG": str(tmp_path / "log"),
    }
    reader = NvmlReader(interval=5.0, environ=environ, clock=clock)
    with pytest.raises(SourceUnavailable, match="crashed"):
        reader.latest(30, closer=True)
    clock.now += 11
    try:
        assert "sm_util" not in reader.latest(30, closer=True)["gpus"][0]
    finally:
        reader.close()


class NVMLError(Exception):
    pass


def test_older_pynvml_without_these_functions_gives_no_figures() -> None:
    gpm = Gpm(SimpleNamespace(NVMLError=NVMLError))

    assert [gpm.figures(0, object()) for _ in range(2)] == [{}, {}]
    gpm.forget()


def test_recorded_figures_are_parsed() -> None:
    """As NVML gave them on H200: a rank in NCCL's kernel of 24 blocks with 17 warps each."""
    rows = [json.loads(line) for line in CAPTURE.read_text().splitlines()]
    used = next(row for row in rows if row["what"] == "rank 1 stuck, one block")["gpus"][0]
    busy, held, count = shares({"index": 0, "sm_util": used["2"], "sm_occupancy": used["3"], "cores": 16896})

    assert count == 132 and busy is not None and held is not None
    assert (busy * 132, 64 * held / busy) == (pytest.approx(24, abs=0.01), pytest.approx(17, abs=0.01))


@pytest.mark.parametrize("wrong", ["18", True, -1.0, 100.5, float("nan"), float("inf"), None, [18.1]])
def test_figure_that_is_none_is_not_taken(wrong: Any) -> None:
    assert shares({"index": 0, "sm_util": wrong, "sm_occupancy": wrong, "cores": wrong}) == (None, None, None)
