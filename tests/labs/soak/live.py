"""A busy node under a real `diag run`, with people and Prometheus asking; what diag's processes hold is
written down."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from tests.labs.soak.recorded import recorded_stacks
from tests.labs.soak.sampling import Disk, Row, Rows, diag_processes, disk_of, look_at, moments
from tests.liverun import LiveRun, live_run

__all__ = ["Asking", "Lived", "Sampler", "soak_live"]

_ROOT = Path(__file__).parents[3]
_ENDING_SECONDS = 2.0
_FOUND = 10  # the exit code where a finding is open


@dataclass(frozen=True, slots=True)
class Asking:
    """Seconds between what is asked of diag meanwhile, and how long a listener of /events stays and is away."""

    metrics: float = 5.0
    dump: float = 120.0
    top: float = 300.0
    listens: float = 45.0
    away: float = 30.0


@dataclass(frozen=True, slots=True)
class Sampler:
    """diag's own account, from a scrape: how often a source was read by then, and how long that took in all."""

    at: float
    sampler: str
    count: float
    seconds: float


@dataclass(slots=True)
class Lived:
    """What came out: `asked` counts answers, `refused` what was not answered."""

    seconds: float
    exit_code: int
    findings: list[str]
    asked: dict[str, int]
    refused: list[str]
    terminal: str


class _Askers:
    """Threads that ask the hub at `url` until they are ended."""

    def __init__(
        self,
        url: str,
        run_dir: Path,
        asking: Asking,
        scraped: Callable[[str], None],
        lives: Callable[[], bool],
    ) -> None:
        self._host = urlsplit(url).netloc
        self._run_dir = run_dir
        self._asking = asking
        self._scraped = scraped
        self._lives = lives
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.asked: dict[str, int] = {}
        self.refused: list[str] = []
        works = [
            (self._scrape, asking.metrics),
            (self._dump, asking.dump),
            (self._top, asking.top),
            (self._listen, asking.away),
        ]
        self._threads = [threading.Thread(target=self._repeat, args=work, daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _repeat(self, work: Callable[[], None], every: float) -> None:
        name = work.__name__.strip("_")
        while not self._over.wait(every):
            try:
                work()
            except (OSError, http.client.HTTPException, subprocess.SubprocessError, ValueError) as error:
                # at the end it is no longer there to answer
                if not self._over.wait(_ENDING_SECONDS) and self._lives():
                    with self._lock:
                        self.refused.append(f"{name}: {type(error).__name__}: {error}")
            else:
                with self._lock:
                    self.asked[name] = self.asked.get(name, 0) + 1

    @contextlib.contextmanager
    def _get(self, path: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"{path}: {answer.status}")
            yield answer
        finally:
            connection.close()

    def _scrape(self) -> None:
        with self._get("/metrics") as answer:
            self._scraped(answer.read().decode())

    def _listen(self) -> None:
        until = time.monotonic() + self._asking.listens
        with self._get("/events") as answer:
            while time.monotonic() < until and not self._over.is_set():
                answer.readline()

    def _run(self, *words: str) -> None:
        command = [sys.executable, "-m", "diag", *words, "--run-dir", str(self._run_dir)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=False, cwd=_ROOT)
        if done.returncode not in (0, _FOUND):
            raise ValueError(f"exit code {done.returncode}")

    def _dump(self) -> None:
        self._run("dump", "--all-ranks")

    def _top(self) -> None:
        self._run("top", "--once")


def soak_live(
    output: Path,
    seconds: float,
    *,
    every: float = 5.0,
    asking: Asking = Asking(),
    dense: bool = False,
    ranks: int = 8,
) -> Lived:
    """Leaves processes.csv, disk.csv and samplers.csv in `output`, row by row."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "stacks.json").write_text(json.dumps(recorded_stacks()))
    command = [
        sys.executable,
        "-m",
        "tests.labs.soak.job",
        str(output),
        "--ranks",
        str(ranks),
        "--seconds",
        str(seconds),
        *(["--dense"] if dense else []),
    ]
    processes, disks = Rows(output / "processes.csv", Row), Rows(output / "disk.csv", Disk)
    samplers = Rows(output / "samplers.csv", Sampler)
    began = time.monotonic()

    def scraped(text: str) -> None:
        at = time.monotonic() - began
        for sampler, (count, took) in sorted(_durations(text).items()):
            samplers.add(Sampler(round(at, 3), sampler, count, round(took, 6)))

    with live_run(output, command, env={"PYTHONPATH": str(_ROOT)}) as run:
        document = run.run_json()
        run.until(lambda: run.run_json().get("url"), 30)
        assert run.run_dir is not None
        askers = _Askers(
            str(run.run_json()["url"]), run.run_dir, asking, scraped, lambda: run.process.poll() is None
        )
        for at in moments(every, seconds + 300):
            if run.process.poll() is not None:
                break
            pids = diag_processes(int(document["hub_pid"]), int(document["pid"]))
            looked = [row for name, pid in pids.items() if (row := look_at(pid, at, name)) is not None]
            if look_at(int(document["pid"]), at, "job") is None:
                break  # it has ended
            for row in looked:
                processes.add(row)
            disks.add(disk_of(run.run_dir, at))
        askers.end()
        lived = _outcome(run, askers, time.monotonic() - began)
    for rows in (processes, disks, samplers):
        rows.close()
    (output / "lived.json").write_text(
        json.dumps({name: getattr(lived, name) for name in Lived.__slots__}, indent=1)
    )
    return lived


def _outcome(run: LiveRun, askers: _Askers, seconds: float) -> Lived:
    code = run.wait(120)  # its last findings and words come when the job has ended
    findings = sorted(
        {f"{change['finding']['id']}: {change['finding']['summary']}" for change in run.changes()}
    )
    said = [line for line in run.text.splitlines() if line.startswith("diag")]
    return Lived(round(seconds, 1), code, findings, askers.asked, askers.refused, "\n".join(said))


def _durations(text: str) -> dict[str, tuple[float, float]]:
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name == "diag_sampler_duration_seconds":
            for sample in family.samples:
                found.setdefault(sample.labels["sampler"], {})[sample.name.rpartition("_")[2]] = sample.value
    return {name: (told.get("count", 0.0), told.get("sum", 0.0)) for name, told in found.items()}
