"""The engine: opening, updating and resolving, and the promise that live equals replay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from diag.detectors import make_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.engine.journal import JournalReader, JournalWriter, segments
from diag.engine.replay import replay_records
from diag.model import JOB, Change, Confidence, Finding, NotChecked, Record, Severity
from diag.outputs.report import report
from diag.sources.host import run as run_source
from diag.sources.parsers import PARSERS
from diag.state.view import JobView
from tests.facts import pid_of


class Says:
    """A detector that says what it is told to."""

    name = "says"
    listens = ()

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def check(self, now: float, job: JobView) -> Iterable[Finding]:
        return self.findings

    def not_checked(self, job: JobView) -> Iterable[NotChecked]:
        return ()


def finding(**changes: object) -> Finding:
    values: dict[str, object] = {
        "id": "hang",
        "subject": "job",
        "severity": Severity.WARNING,
        "confidence": Confidence.HIGH,
        "summary": "s",
        "advice": "a",
        "since": 1.0,
        **changes,
    }
    return Finding(**values)  # type: ignore[arg-type]


def kinds(changes: Iterable[Change]) -> list[str]:
    return [change.kind.value for change in changes]


def test_finding_opens_once_updates_when_its_face_changes_and_resolves() -> None:
    says = Says()
    engine = Engine({}, [says], PRECEDENCE)

    says.findings = [finding()]
    opened = engine.advance(10.0)
    says.findings = [finding(summary="another number")]
    same = engine.advance(11.0)
    says.findings = [finding(ranks=(1,))]
    updated = engine.advance(12.0)
    says.findings = []
    resolved = engine.advance(13.0)

    assert [kinds(changes) for changes in (opened, same, updated, resolved)] == [
        ["opened"],
        [],
        ["updated"],
        ["resolved"],
    ]
    assert resolved[0].opened_at == 10.0


def test_finding_that_holds_is_not_resolved_by_a_gap_and_a_final_one_never() -> None:
    says = Says()
    engine = Engine({}, [says], PRECEDENCE)
    says.findings = [finding(holds_seconds=5.0), finding(id="rank-died", final=True)]
    engine.advance(10.0)

    says.findings = []
    quiet = engine.advance(14.0)
    resolved = engine.advance(16.0)

    assert quiet == []
    assert [change.finding.id for change in resolved] == ["hang"]
    # told late, and not called longer than it was
    assert (resolved[0].at, resolved[0].resolved_at) == (15.0, 11.0)
    assert [found.id for found in engine.active()] == ["rank-died"]


def test_clock_that_goes_back_is_ignored() -> None:
    engine = Engine({}, [Says()], PRECEDENCE)
    engine.advance(100.0)

    assert engine.advance(50.0) == []
    assert engine.now == 100.0


def test_long_gap_is_not_filled_with_checks() -> None:
    says = Says()
    engine = Engine({}, [says], PRECEDENCE)
    engine.advance(10.0)
    says.findings = [finding()]

    assert kinds(engine.advance(1e9)) == ["opened"]


def test_unknown_source_is_told_as_not_checked() -> None:
    engine = Engine({}, [Says()], PRECEDENCE)

    engine.feed(Record("from-the-future", {}, at=1.0))

    assert "from-the-future" in report(engine)["not_checked"][0]["reason"]


def stack_payload(rank: int, function: str) -> dict[str, object]:
    frame = {
        "name": function,
        "filename": "/app/train.py",
        "short_filename": "train.py",
        "line": 3,
        "module": None,
        "locals": None,
    }
    thread = {
        "pid": pid_of(rank),
        "thread_id": 1,
        "thread_name": "MainThread",
        "os_thread_id": pid_of(rank),
        "active": False,
        "owns_gil": False,
        "frames": [frame],
        "process_info": None,
    }
    return {"pid": pid_of(rank), "stdout": [thread]}


def proc_payload(rank: int, ticks: int) -> dict[str, object]:
    fields = [
        "S",
        "1",
        "1",
        "1",
        "0",
        "-1",
        "0",
        "0",
        "0",
        "0",
        "0",
        str(ticks),
        "0",
        "0",
        "0",
        "20",
        "0",
        "5",
        "0",
        "777",
        "0",
        "1000",
    ]
    stat = f"{pid_of(rank)} (python3) " + " ".join(fields + ["0"] * 28)
    return {
        "pid": pid_of(rank),
        "hz": 100,
        "page": 4096,
        "stat": stat,
        "io": None,
        "status": None,
        "wchan": "futex_do_wait",
        "main_stat": stat,
        "fds": 5,
        "children": [],
    }


def placed(rank: int) -> Record:
    from diag.model import Placement

    return run_source.rank_found(Placement(rank, rank, 2, "n", pid_of(rank), 777), "python", {})


def records() -> st.SearchStrategy[Record]:
    ranks = st.integers(0, 1)
    return st.one_of(
        ranks.map(placed),
        st.just(run_source.started(["python"], 1, "n", 2)),
        st.builds(
            lambda rank, name: Record("pyspy", stack_payload(rank, name), rank=rank),
            ranks,
            st.sampled_from("ab"),
        ),
        st.builds(
            lambda rank, ticks: Record("proc", proc_payload(rank, ticks), rank=rank, emitted=1.0),
            ranks,
            st.integers(0, 500),
        ),
        st.builds(
            lambda rank, status: Record(
                "exits", {"pid": pid_of(rank), "status": status, "how": "pidfd"}, rank=rank
            ),
            ranks,
            st.sampled_from([0, 9, 256]),
        ),
        st.builds(
            lambda text: Record("output", {"stream": "stdout", "lines": [[text, 0]]}),
            st.sampled_from(
                [
                    "[INFO:swift] The training of Epoch 0 starts...",
                    "{'loss': 0.5, 'iteration': '3/9'}",
                    "OSError: [Errno 24] Too many open files",
                ]
            ),
        ),
        st.builds(
            lambda junk: Record("output", junk),
            st.one_of(st.none(), st.text(max_size=5), st.dictionaries(st.text(max_size=3), st.integers())),
        ),
    )


@settings(max_examples=150, deadline=None)
@given(schedule=st.lists(st.tuples(st.floats(0.0, 40.0), st.one_of(st.none(), records())), max_size=60))
def test_replay_of_the_journal_gives_what_was_said_live(tmp_path_factory, schedule) -> None:
    """Whatever arrives in whatever rhythm, with checks driven by a timer in between."""
    directory: Path = tmp_path_factory.mktemp("journal")
    journal = JournalWriter(directory)
    live = Engine(PARSERS, make_detectors(), PRECEDENCE)
    changes: list[Change] = []
    now = 1000.0
    for pause, record in schedule:
        now += pause + 1e-3
        if record is None:
            changes += live.advance(now)
            continue
        stamped = Record(record.source, record.payload, record.rank, record.host, record.emitted, now)
        assert journal.write(stamped) is None
        changes += live.feed(stamped)
    ended = Record("run", {"event": "ended", "returncode": 0}, at=now + 1.0)
    journal.write(ended)
    changes += live.feed(ended)
    changes += live.finish()
    journal.close()

    again, replayed = replay_records(JournalReader(segments(directory)))

    assert [change.to_json() for change in replayed] == [change.to_json() for change in changes]
    assert report(again) == report(live)


def test_detectors_import_neither_sources_nor_outputs_nor_what_runs_in_threads() -> None:
    for path in Path(__file__).parents[2].joinpath("diag", "detectors").rglob("*.py"):
        text = path.read_text()
        assert not any(room in text for room in ("diag.sources", "diag.outputs", "diag.agent.samplers")), (
            path.name
        )


def test_finding_that_another_takes_the_place_of_is_not_over() -> None:
    first = finding(id="rank-died", subject="rank 1", ranks=(1,))
    second = finding(id="rank-died", subject="rank 0", ranks=(0,))
    says = Says()
    says.findings = [first]
    engine = Engine(PARSERS, [says], PRECEDENCE)
    engine.advance(10.0)
    says.findings = [second]

    changes = engine.advance(11.0)

    assert [(change.kind.value, change.replaced) for change in changes] == [
        ("opened", False),
        ("resolved", True),
    ]
    assert engine.over() == [] and engine.active() == [second]


def test_what_follows_from_another_finding_is_read_after_it() -> None:
    def finding(name: str, since: float, klass: str = "", severity: Severity = Severity.CRITICAL) -> Finding:
        return Finding(name, JOB, severity, Confidence.HIGH, "", "", since, klass)

    says = Says()
    says.findings = [
        finding("checkpoint-missing", 0.2, "left_behind"),
        finding("checkpoint-corrupt", 0.1, "left_behind"),
        finding("hang", 1.0, "peer_lost"),
        finding("rank-died", 2.0),
        finding("shm-too-small", 3.0),
        finding("straggler", 0.0, severity=Severity.WARNING),
    ]
    engine = Engine({}, [says], PRECEDENCE)

    engine.advance(10.0)
    engine.advance(12.0)

    read = [item.id for item in engine.active()]
    assert read == [
        "shm-too-small",
        "rank-died",
        "hang",
        "checkpoint-corrupt",
        "checkpoint-missing",
        "straggler",
    ]


def test_gpu_that_failed_is_read_before_the_wait_for_it() -> None:
    says = Says()
    says.findings = [
        Finding(name, JOB, Severity.CRITICAL, Confidence.HIGH, "", "", since, klass)
        for name, since, klass in (("hang", 1.0, "gpu_side"), ("gpu-fault", 2.0, ""))
    ]
    engine = Engine({}, [says], PRECEDENCE)

    engine.advance(10.0)
    engine.advance(12.0)

    assert [item.id for item in engine.active()] == ["gpu-fault", "hang"]


def test_a_steep_rise_near_the_limit_is_judged_with_its_reading_not_at_the_next_second() -> None:
    # given: one save is known, and a check has just been
    says = Says()
    engine = Engine(PARSERS, [says], PRECEDENCE)
    gib = 1 << 30

    def reading(at: float, used: int) -> list[str]:
        stat = "anon 0\ninactive_file 0\nactive_file 0\n"
        level = {"path": "/a", "limit": str(10 * gib), "usage": str(used * gib), "stat": stat}
        payload = {
            "pid": 1,
            "version": 2,
            "levels": [level],
            "meminfo": "MemTotal: 99999999 kB\nMemAvailable: 9 kB\n",
        }
        return kinds(engine.feed(Record("cgroup", payload, rank=0, at=at)))

    saves = engine.job.saves.log
    reading(100.2, 2)
    engine.job.progress.iteration = 10
    for at, used in ((101.2, 4), (102.2, 6), (103.2, 2)):
        reading(at, used)
    saves.began(101.0, 10, 100.5, "log")
    saves.ended(103.5, 10, 103.5, "/out/checkpoint-10")
    engine.job.saves.memory.saved(saves)
    says.findings = [finding()]

    # when, then: a small rise waits for the whole second, a steep one does not
    assert reading(103.8, 2) == []
    assert reading(103.9, 8) == ["opened"]
