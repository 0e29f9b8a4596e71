"""Memory and CPU of diag's own processes beside a healthy job, from /proc, with what they waited for."""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.liverun import LiveRun

from . import target, timed_job
from .machine import Cost, bench_env, cost, ran
from .runs import Diag, NotReady, processes, shell_script, under_diag, until
from .stats import judge
from .table import Row, percent, times

__all__ = ["rows"]

_SIDECAR_RSS, _SIDECAR_CPU, _HUB_RSS, _HUB_CPU = 30.0, 0.005, 90.0, 0.01
_SETTLE_SECONDS = 15.0
_SCRAPE_SECONDS = 15.0  # as Prometheus is usually set
_LOOP_SECONDS = 10.0


def rows(ranks: int, seconds: float, say: Callable[[str], None], *, torch: bool) -> list[Row]:
    """`torch`: the bundled job, else plain Python ranks."""
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name, _peer_app() as app:
        folder = Path(name)
        if torch:
            command, kind = timed_job.command(ranks, step_seconds=0.5), "the bundled job, steps of 0.5 s"
        else:  # mostly asleep, so that many fit on a small machine
            spins = target.calibrate(0.005)
            command = target.command(folder, ranks=ranks, spins=spins, rest=0.25, threads=4)
            kind = "plain Python, steps of 0.25 s"
        with under_diag(command, folder) as run:
            url = until(lambda: run.run_json().get("url"), 60, "diag serves HTTP")
            pids = until(lambda: target.complete(folder, ranks), 180, "all ranks train")
            diag = until(lambda: _complete(run, ranks), 60, "each rank has its sidecar")
            assert diag is not None
            say(f"steady state, {ranks} ranks: settling {_SETTLE_SECONDS:.0f} s, measuring {seconds:.0f} s")
            time.sleep(_SETTLE_SECONDS)
            groups = {"hub": [diag.hub], "sidecar": list(diag.sidecars), "other": list(diag.others), "app": [app[0]]}
            use = _watch(groups, seconds, [f"{url}/metrics", f"http://127.0.0.1:{app[1]}/metrics/"])
            loop = statistics.median(ran(["bash", "-c", shell_script(list(pids.values()))]).cpu for _ in range(5)) / _LOOP_SECONDS
            bare = _bare_rss()
            return _table(use, loop, bare, ranks, kind)


def _complete(run: LiveRun, ranks: int) -> Diag | None:
    with contextlib.suppress(NotReady):
        found = processes(run)
        return found if len(found.sidecars) == ranks else None
    return None


def _watch(groups: dict[str, list[int]], seconds: float, scrape: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Group -> (most RSS of one process, CPU of one process as a share of a core, mean over the group)."""
    began, first = time.monotonic(), {pid: cost(pid) for pids in groups.values() for pid in pids}
    most = {pid: value.rss for pid, value in first.items()}
    scraped = began - _SCRAPE_SECONDS
    last: dict[int, Cost] = first
    while time.monotonic() - began < seconds:
        if time.monotonic() - scraped >= _SCRAPE_SECONDS:
            scraped = time.monotonic()
            for url in scrape:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    answer.read()
        time.sleep(1.0)
        last = {pid: cost(pid) for pid in most}
        most = {pid: max(most[pid], value.rss) for pid, value in last.items()}
    took = time.monotonic() - began
    return {
        name: (max(most[pid] for pid in pids), statistics.fmean((last[pid].cpu - first[pid].cpu) / took for pid in pids))
        for name, pids in groups.items() if pids
    }


def _table(use: dict[str, tuple[float, float]], loop: float, bare: float, ranks: int, kind: str) -> list[Row]:
    (sidecar_rss, sidecar_cpu), (hub_rss, hub_cpu), (app_rss, app_cpu) = use["sidecar"], use["hub"], use["app"]
    other_rss, other_cpu = use.get("other", (0.0, 0.0))
    whole_rss = hub_rss + other_rss + ranks * sidecar_rss
    whole_cpu = hub_cpu + other_cpu + ranks * sidecar_cpu
    each = f"py-spy loop each {_LOOP_SECONDS:.0f} s: {percent(loop / ranks)} a rank"
    scraped = f", scraped each {_SCRAPE_SECONDS:.0f} s"
    return [
        _memory(f"memory of a sidecar, {ranks} ranks ({kind})", sidecar_rss, "`python -c pass`, asleep", bare, _SIDECAR_RSS),
        Row(f"CPU of a sidecar, {ranks} ranks", percent(sidecar_cpu), each, times(sidecar_cpu, loop / ranks),
            f"< {percent(_SIDECAR_CPU, 1)}", judge(sidecar_cpu, _SIDECAR_CPU), {"diag": sidecar_cpu, "peer": loop / ranks}),
        _memory(f"memory of the hub, {ranks} ranks", hub_rss, "bare FastAPI + prometheus_client", app_rss, _HUB_RSS),
        Row(f"CPU of the hub{scraped}, {ranks} ranks", percent(hub_cpu), f"bare FastAPI{scraped}: {percent(app_cpu)}",
            times(hub_cpu, app_cpu), f"< {percent(_HUB_CPU, 0)}", judge(hub_cpu, _HUB_CPU), {"diag": hub_cpu, "peer": app_cpu}),
        Row(f"all of diag on a node of {ranks} ranks", f"{whole_rss:.0f} MB, {percent(whole_cpu)} of a core",
            f"py-spy loop each {_LOOP_SECONDS:.0f} s: {percent(loop)}", times(whole_cpu, loop), "", "",
            {"rss": whole_rss, "cpu": whole_cpu, "peer_cpu": loop}),
    ]


def _memory(what: str, rss: float, peer: str, peer_rss: float, limit: float) -> Row:
    return Row(what, f"{rss:.1f} MB", f"{peer}: {peer_rss:.1f} MB", times(rss, peer_rss), f"< {limit:.0f} MB", judge(rss, limit),
               {"diag": rss, "peer": peer_rss})


@contextlib.contextmanager
def _peer_app() -> Iterator[tuple[int, int]]:
    """Pid and port of the bare app, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.peer_app", str(port)], env=bench_env())
    try:
        until(lambda: _answers(port), 60, "the bare FastAPI app answers")
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def _bare_rss() -> float:
    script = "import time; print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        rss = cost(process.pid).rss
        process.kill()
    return rss
