"""Memory and CPU of diag's own processes, from /proc: without ranks, beside a healthy job, and under
suspicion."""

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

from . import scrape, target
from .machine import Cost, bench_env, cost, ran
from .runs import Diag, NotReady, processes, shell_script, under_diag, until
from .scrape import fetched, series_in
from .stats import judge
from .table import Row, percent, times

__all__ = ["idle_rows", "rows"]

_SIDECAR_RSS, _SIDECAR_CPU, _HUB_RSS, _HUB_CPU = 30.0, 0.005, 90.0, 0.01
_WHOLE_RSS, _WHOLE_CPU, _IDLE_CPU, _CLOSE_CPU = 40.0, 0.005, 0.001, 0.05
_SETTLE_SECONDS = 15.0
_SCRAPE_SECONDS = 15.0  # as Prometheus is usually set
_LOOP_SECONDS = 10.0
_SUSPECTS_SECONDS = 100.0  # its patience is 15 s


def rows(ranks: int, seconds: float, scrapes: int, say: Callable[[str], None]) -> list[Row]:
    """A healthy job, and then the same job as it hangs. `scrapes`: rounds of them, 0 for none."""
    with tempfile.TemporaryDirectory(prefix="diag-bench-") as name, contextlib.ExitStack() as stack:
        folder, stop = Path(name), Path(name) / "stop"
        spins = target.calibrate(0.005)  # mostly asleep, so that many fit on a small machine
        command = target.command(folder, ranks=ranks, spins=spins, rest=0.25, threads=4, stop_file=stop)
        run = stack.enter_context(under_diag(command, folder))
        url = str(until(lambda: run.run_json().get("url"), 60, "diag serves HTTP"))
        pids = until(lambda: target.complete(folder, ranks), 180, "all ranks train")
        diag = until(lambda: _complete(run, ranks), 60, "each rank has its sidecar")
        assert diag is not None
        say(f"steady state, {ranks} ranks: settling {_SETTLE_SECONDS:.0f} s, measuring {seconds:.0f} s")
        time.sleep(_SETTLE_SECONDS)
        app = stack.enter_context(_peer_app(series_in(fetched(f"{url}/metrics"))))
        scraped = [f"{url}/metrics", f"http://127.0.0.1:{app[1]}/metrics/"]
        groups = {
            "hub": [diag.hub],
            "sidecar": list(diag.sidecars),
            "other": list(diag.others),
            "app": [app[0]],
        }
        use = _watch(groups, seconds, scraped)
        loop = (
            statistics.median(ran(["bash", "-c", shell_script(list(pids.values()))]).cpu for _ in range(5))
            / _LOOP_SECONDS
        )
        found = _table(use, loop, _bare_rss(), ranks)
        if scrapes:
            found += scrape.rows((diag.hub, scraped[0]), (app[0], scraped[1]), scrapes, say)
        say(f"{ranks} ranks hang: measuring {seconds:.0f} s under suspicion")
        stop.touch()
        until(run.hang, _SUSPECTS_SECONDS, "the hang is told")
        return [*found, _suspicion(_watch(groups, seconds, scraped), loop, ranks)]


def idle_rows(seconds: float, say: Callable[[str], None]) -> list[Row]:
    """`diag run` of a command without ranks, not scraped."""
    with (
        tempfile.TemporaryDirectory(prefix="diag-bench-") as name, _peer_app(200) as app,
        under_diag(["sleep", "1000"], Path(name)) as run,
    ):  # fmt: skip
        until(lambda: run.run_json().get("url"), 60, "diag serves HTTP")
        say(f"idle: settling {_SETTLE_SECONDS:.0f} s, measuring {seconds:.0f} s")
        time.sleep(_SETTLE_SECONDS)
        hub = int(run.run_json()["hub_pid"])  # beside the process that carries CMD
        use = _watch({"hub": [hub], "app": [app[0]]}, seconds, [])
    (rss, cpu), (app_rss, app_cpu) = use["hub"], use["app"]
    return [
        Row("CPU of the hub, idle (a command without ranks)", percent(cpu), f"bare FastAPI: {percent(app_cpu)}",
            times(cpu, app_cpu), f"< {percent(_IDLE_CPU, 1)}", judge(cpu, _IDLE_CPU), {"diag": cpu, "peer": app_cpu}, "P13 idle"),
        _memory("memory of the hub, idle", rss, "bare FastAPI + prometheus_client", app_rss, _HUB_RSS, "hub memory idle"),
    ]  # fmt: skip


def _suspicion(use: dict[str, tuple[float, float]], loop: float, ranks: int) -> Row:
    (sidecar_rss, sidecar_cpu), (hub_rss, hub_cpu) = use["sidecar"], use["hub"]
    whole = hub_cpu + ranks * sidecar_cpu
    peer = loop * _LOOP_SECONDS / 2.0  # a loop as often as diag then looks
    goal = _CLOSE_CPU + 0.005 * ranks
    return Row(
        f"CPU of all of diag under suspicion (a hang, stacks each 2 s), {ranks} rank{'s' * (ranks > 1)}",
        f"{percent(whole)}: hub {percent(hub_cpu)}, {hub_rss:.0f} MB; a sidecar {percent(sidecar_cpu)}, {sidecar_rss:.0f} MB",
        f"py-spy loop each 2 s: {percent(peer)}",
        times(whole, peer),
        f"< {percent(goal, 0)}",
        judge(whole, goal),
        {
            "diag": whole,
            "hub": hub_cpu,
            "sidecar": sidecar_cpu,
            "hub_rss": hub_rss,
            "sidecar_rss": sidecar_rss,
            "peer": peer,
        },
        f"suspicion, {ranks}",
    )


def _complete(run: LiveRun, ranks: int) -> Diag | None:
    with contextlib.suppress(NotReady):
        found = processes(run)
        return found if len(found.sidecars) == ranks else None
    return None


def _watch(
    groups: dict[str, list[int]], seconds: float, scrape: Sequence[str]
) -> dict[str, tuple[float, float]]:
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
        name: (
            max(most[pid] for pid in pids),
            statistics.fmean((last[pid].cpu - first[pid].cpu) / took for pid in pids),
        )
        for name, pids in groups.items()
        if pids
    }


def _table(use: dict[str, tuple[float, float]], loop: float, bare: float, ranks: int) -> list[Row]:
    (sidecar_rss, sidecar_cpu), (hub_rss, hub_cpu), (app_rss, app_cpu) = (
        use["sidecar"],
        use["hub"],
        use["app"],
    )
    other_rss, other_cpu = use.get("other", (0.0, 0.0))
    whole_rss = hub_rss + other_rss + ranks * sidecar_rss
    whole_cpu = hub_cpu + other_cpu + ranks * sidecar_cpu
    each = f"py-spy loop each {_LOOP_SECONDS:.0f} s: {percent(loop / ranks)} a rank"
    scraped, of = f", scraped each {_SCRAPE_SECONDS:.0f} s", f"{ranks} rank{'s' * (ranks > 1)}"
    both = f"< {_WHOLE_RSS:.0f} MB, {percent(_WHOLE_CPU, 1)}"
    return [
        _memory(
            f"memory of a sidecar, {of}",
            sidecar_rss,
            "`python -c pass`, asleep",
            bare,
            _SIDECAR_RSS,
            f"sidecar memory, {ranks}",
        ),
        Row(
            f"CPU of a sidecar, {of}",
            percent(sidecar_cpu),
            each,
            times(sidecar_cpu, loop / ranks),
            f"< {percent(_SIDECAR_CPU, 1)}",
            judge(sidecar_cpu, _SIDECAR_CPU),
            {"diag": sidecar_cpu, "peer": loop / ranks},
            f"sidecar CPU, {ranks}",
        ),
        _memory(
            f"memory of the hub, {of}",
            hub_rss,
            "bare FastAPI + prometheus_client",
            app_rss,
            _HUB_RSS,
            f"hub memory, {ranks}",
        ),
        Row(
            f"CPU of the hub{scraped}, {of}",
            percent(hub_cpu),
            f"bare FastAPI{scraped}: {percent(app_cpu)}",
            times(hub_cpu, app_cpu),
            f"< {percent(_HUB_CPU, 0)}",
            judge(hub_cpu, _HUB_CPU),
            {"diag": hub_cpu, "peer": app_cpu},
            f"hub CPU, {ranks}",
        ),
        Row(
            f"all of diag on a node of {of}",
            f"{whole_rss:.0f} MB, {percent(whole_cpu)} of a core",
            f"py-spy loop each {_LOOP_SECONDS:.0f} s: {percent(loop)}; bare Python: {bare:.0f} MB",
            times(whole_cpu, loop),
            both,
            "met" if whole_rss < _WHOLE_RSS and whole_cpu < _WHOLE_CPU else "missed",
            {"rss": whole_rss, "cpu": whole_cpu, "peer_cpu": loop},
            f"P5 P12, {ranks}",
        ),
    ]


def _memory(  # noqa: PLR0917 - one file
    what: str, rss: float, peer: str, peer_rss: float, limit: float, key: str
) -> Row:
    return Row(
        what,
        f"{rss:.1f} MB",
        f"{peer}: {peer_rss:.1f} MB",
        times(rss, peer_rss),
        f"< {limit:.0f} MB",
        judge(rss, limit),
        {"diag": rss, "peer": peer_rss},
        key,
    )


@contextlib.contextmanager
def _peer_app(series: int) -> Iterator[tuple[int, int]]:
    """Pid and port of the bare app, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.labs.bench.peer_app", str(port), str(series)], env=bench_env()
    )
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
