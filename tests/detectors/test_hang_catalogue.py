"""The catalogue of causes, and every sentence that can be made of it: true of each rank that it names, of nobody who
is not there, whole, and not too long."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from diag.detectors.hang.catalogue import FILES, Texts, catalogue, entry_of
from diag.detectors.hang.catalogue import KINDS as CAUSE_KINDS
from diag.detectors.hang.evidence import evidence_of
from diag.detectors.hang.facts import FACTS
from diag.detectors.hang.messages import advice_for, describe
from diag.detectors.hang.verdict import Verdict
from diag.model import JOB, Confidence, Finding, Severity, what_holds
from diag.model.observations import PhaseMarked, RunStarted, StackSample, VersionSeen
from diag.model.observations.waits import Party, ProcessWaits, ThreadWait, Wait
from diag.state.collective_fronts import Signature
from diag.state.view import JobView
from diag.state.wait_chain import Chain, Step
from diag.state.wait_graph import Explanation
from diag.state.wait_graph import Wait as CallWait
from diag.text.tables import load_table, places
from tests import sentences
from tests.facts import ALL_REDUCE, DATA, SLEEP, TRAIN, WORKER, Story, pid_of, process, stack, tree
from tests.manual.causes_in_code import causes_by_file

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "diag" / "detectors" / "hang" / "causes"
CAUSES = [*sorted(catalogue()), "xid_79", "named_by_a_newer_diag"]
OF_NOBODY = [
    "all_ranks_wait", "communicator_not_made", "culprit_not_seen", "not_all_joined", "named_by_a_newer_diag", "nobody_sends",
    "message_not_met", "ways_differ", "rpc_never_answered",
]  # fmt: skip
LONGEST = 2000  # characters of a sentence, or of an advice


def texts(cause: str) -> dict[str, Texts]:
    entry = entry_of(cause)
    return {"others": entry.others, "alone": entry.alone}


# -- the table ----------------------------------------------------------------------------------------------


def test_files_are_those_of_the_folder_and_no_cause_is_in_two() -> None:
    tables = {name: load_table(FOLDER / f"{name}.yaml") for name in FILES}

    assert {path.stem for path in FOLDER.iterdir()} == {*FILES}
    assert sum(map(len, tables.values())) == len(catalogue())


@pytest.mark.parametrize("cause", sorted(catalogue()))
def test_entry_is_whole(cause: str) -> None:
    entry = catalogue()[cause]
    row = next(rows[cause] for name in FILES if cause in (rows := load_table(FOLDER / f"{name}.yaml")))

    judged = {"ground", "proven_by", "report_after", "hang_after"}
    assert set(row) <= {"classes", "kinds", "summary", "advice", "alone", "manual", *judged}
    assert entry.kinds <= {*CAUSE_KINDS}
    assert len(row.get("ground", {"none": ""})) == 1
    assert row.get("proven_by", "kernel") in ("kernel", "last_wait")
    assert set(row.get("alone", {})) <= {"summary", "advice"}
    assert entry.classes
    assert {*entry.manual} == {"en", "zh"}
    assert catalogue()[entry.shares].shares == entry.shares
    for said in texts(cause).values():
        assert what_holds(said.advice, over=False).endswith((".", "?")), said.advice
        assert not said.summary.endswith("."), said.summary
        used = places(said.advice + said.summary)
        assert {place[0].lower() + place[1:] for place in used} <= {*FACTS}


@pytest.mark.parametrize("cause", sorted(catalogue()))
def test_who_waits_is_named_only_where_somebody_does(cause: str) -> None:
    alone = entry_of(cause).alone

    assert not places(alone.summary + alone.advice) & {"victims", "Victims", "wait", "gpus_spin"}
    assert not sentences._OTHERS.search(alone.summary + alone.advice)


def test_causes_that_the_code_names_are_entries() -> None:
    named = {
        cause for name, causes in causes_by_file().items() if name.startswith("hang/") for cause in causes
    }

    assert {"peer_is_silent", "polls_for_file", "nobody_puts", "lock_held"} <= named <= {*catalogue()}


def test_each_kind_is_of_some_cause() -> None:
    assert {kind for entry in catalogue().values() for kind in entry.kinds} == {*CAUSE_KINDS}


def test_classes_are_those_of_the_reference() -> None:
    section = (ROOT / "docs" / "reference" / "findings.md").read_text(encoding="utf-8")
    rows = section.partition("## Classes of `hang`")[2].partition("\n\nA GPU")[0].splitlines()
    named = {name.strip() for row in rows if row.startswith("| ") for name in row.split("|")[1].split(",")}

    assert {klass for entry in catalogue().values() for klass in entry.classes} == named - {"class", "---"}


def test_commands_that_judge_nothing_do_not_read_the_catalogue() -> None:
    modules = "diag.cli.main, diag.outputs.manual, diag.outputs.view.classes, diag.detectors.hang"
    check = f"import sys, {modules}; sys.exit('yaml' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


# -- the job's own flags --------------------------------------------------------------------------------------


def blocked_worker(argv: tuple[str, ...], *facts: VersionSeen) -> str:
    story = Story(())
    story.tell(RunStarted(None, argv, 999, "node-0", 2), *facts)
    verdict = Verdict(
        "data_loading", (1,), (0,), "dataloader_worker_blocked", 0.0, Confidence.HIGH, blamed_child=77
    )
    return advice_for(verdict, story.engine.job)


@pytest.mark.parametrize(
    ("argv", "version", "shown"),
    [
        (("megatron", "rlhf"), "3.12.6", "--num_workers 0"),
        (("megatron", "rlhf"), "4.6.0", "--dataloader_num_workers 0"),
        (("swift", "sft"), "3.12.6", "--dataloader_num_workers 0"),
        (("torchrun", "pretrain_gpt.py", "--num-workers", "8"), "", "--num-workers 0"),
        (("torchrun", "train.py"), "", "num_workers=0"),
    ],
)
def test_advice_names_the_flag_of_the_jobs_own_version(
    argv: tuple[str, ...], version: str, shown: str
) -> None:
    facts = [VersionSeen(None, "ms-swift", version)] if version else []

    assert f"To go on without it: {shown} shows the error" in blocked_worker(argv, *facts)


def test_advice_names_the_folder_that_the_command_saves_to() -> None:
    story = Story(())
    story.tell(RunStarted(None, ("megatron", "sft", "--output_dir", "/mnt/my out"), 999, "node-0", 2))
    verdict = Verdict("checkpoint_io", (1,), (), "checkpoint_write_blocked", 0.0, Confidence.HIGH)

    said = advice_for(verdict, story.engine.job)

    assert "the file system of the output directory /mnt/my out (`df '/mnt/my out'`, `stat -f`" in said


# -- whom a chain names ---------------------------------------------------------------------------------------


def step(wait: Wait, tid: int = 1001, name: str = "python", pid: int = 1001, command: str = "") -> Step:
    one = ThreadWait(tid, name, "S", "", wait)
    return Step(ProcessWaits(pid, 1, command, (one,)), one)


def told(cause: str, chain: Chain, culprits: tuple[int, ...] = (1,)) -> str:
    verdict = Verdict("peer_not_joined", culprits, (), cause, 0.0, Confidence.HIGH, chain=chain)
    return advice_for(verdict, Story(()).engine.job)


def test_who_waits_at_a_pipe_without_other_end_is_the_last_of_the_chain() -> None:
    child = Party(77, 0, "sh put.sh")
    pipe = Wait("pipe_read", fd=7, dead_end="only_self")
    rank = step(Wait("child", others=(child,)))

    alone = told("pipe_without_other_end", Chain((step(pipe),), "dead_end"))
    behind = told("pipe_without_other_end", Chain((rank, step(pipe, 77, "sh", 77, "sh put.sh")), "dead_end"))

    assert alone.startswith("Rank 1 waits at a pipe or socket (fd 7) whose other end")
    assert behind.startswith("Process 77 (`sh put.sh`) waits at a pipe or socket (fd 7) whose other end")


def test_owner_of_a_lock_that_may_not_be_read_is_not_the_waiter_itself() -> None:
    chain = Chain((step(Wait("mutex", others=(Party(1001, 1044),))),), "outside")

    assert told("lock_held", chain).startswith("Rank 1 waits for a lock that the thread with tid 1044 holds:")


def test_process_without_a_command_line_is_named_by_its_pid() -> None:
    chain = Chain((step(Wait("file_lock", path="/data/.lock", others=(Party(4711),))),), "outside")

    assert told("file_lock_held", chain, (1, 2)).startswith(
        "Ranks 1-2 wait for the lock on /data/.lock, which process 4711 holds:"
    )


def test_long_chain_is_told_by_its_ends() -> None:
    """As of a build system's nested shells."""
    children = [
        step(Wait("child", others=(Party(pid + 1, 0, f"make -C part{pid + 1}"),)), pid, "make", pid)
        for pid in range(1001, 1013)
    ]
    chain = Chain((*children, step(Wait("sleep"), 1013, "sleep", 1013)), "sleeps")
    verdict = Verdict("unknown", (1,), (), "child_does_not_end", 0.0, Confidence.HIGH, chain=chain)

    said = describe(verdict, Story(()).engine.job, 60.0)

    assert "its main thread waits for child pid 1002 (`make -C part1002`) to end, which waits for" in said
    assert "to end, and so on over 8 more, the last of which sleeps (2 of 2 ranks seen)" in said


# -- every verdict --------------------------------------------------------------------------------------------

STACKS = [
    ALL_REDUCE, DATA, SLEEP, (), ("<module> /app/train.py:3",),
    (*TRAIN, "wait python3.11/threading.py:331"),
    (*TRAIN, "save torch/serialization.py:964", "_save torch/serialization.py:1003", "write_all /app/o.py:7"),
    (*TRAIN, *DATA[3:], *(f"deeper_{depth} /app/deep.py:{depth}" for depth in range(9))),
    (*TRAIN, "barrier torch/distributed/distributed_c10d.py:5000"),
    (*TRAIN, f"{'a_very_long_name' * 3} /app/{'deep/' * 12}file.py:1234"),
]  # fmt: skip
NAMES = st.sampled_from(["uploader", "Thread-1 (run)", "pt_data_pin", "w"])
COMMANDS = st.sampled_from(["", "sh upload.sh", "python " + "train.py --flag=value " * 40])
KINDS = [
    "tcp_receive", "tcp_send", "tcp_connect", "tcp_accept", "unix_receive", "receive", "child", "join", "mutex", "gil",
    "semaphore", "condition", "pipe_read", "pipe_write", "fifo_open", "terminal", "file_io", "file_lock", "sleep",
    "poll", "running", "stopped", "frozen", "other", "unreadable",
]  # fmt: skip


@st.composite
def waits(draw: st.DrawFn) -> Wait:
    party = st.builds(Party, st.just(1001) | st.integers(2, 99_999), st.sampled_from([0, 1044]), COMMANDS)
    others = draw(st.lists(party, max_size=5))
    return Wait(
        draw(st.sampled_from(KINDS)),
        fd=draw(st.integers(-1, 99)),
        path=draw(st.sampled_from(["", "/data/a.bin", "pipe:[7]"])),
        mount=draw(st.sampled_from(["", "/data"])),
        file_system=draw(st.sampled_from(["", "nfs4"])),
        peer=draw(st.sampled_from(["", "10.0.0.5:443", "[fd00::1]:443"])),
        seconds=draw(st.none() | st.floats(0, 600)),
        silent_seconds=draw(st.none() | st.floats(0, 600)),
        others=tuple(others),
        dead_end=draw(st.sampled_from(["", "no_other_end", "owner_ended", "stopped", "alone"])),
        forked=draw(st.booleans()),
    )


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    steps = [
        step(draw(waits()), draw(st.sampled_from([1001, 1044])), draw(NAMES), 1001, draw(COMMANDS))
        for _ in range(draw(st.integers(1, 16)))
    ]
    end = draw(st.sampled_from(["dead_end", "cycle", "sleeps", "remote", "outside"]))
    unnamed = Chain((step(Wait(draw(st.sampled_from(["condition", "poll"])))),), "no_owner")
    return Chain(tuple(steps), end, behind=draw(st.none() | st.just(unnamed)))


@st.composite
def recorded(draw: st.DrawFn, ranks: Sequence[int]) -> Explanation:
    kind = draw(st.sampled_from(["absent_rank", "order_cycle", "mismatch", "all_joined"]))
    calls = [Signature("all_reduce", ((8, 4),), ("float",), (rank,)) for rank in ranks]
    waiting = {rank: CallWait("0", "default_pg", 7, "all_reduce") for rank in ranks}
    return Explanation(kind, tuple(ranks[:1]), waiting, tuple(calls) if kind == "mismatch" else ())


@st.composite
def judged(draw: st.DrawFn) -> tuple[Verdict, JobView, float]:
    """A job that stands, and a verdict about it, its cause left open."""
    world = draw(st.integers(1, 7))
    story = Story((), world=world)
    for phase in draw(st.lists(st.sampled_from(["rendezvous", "first_step", "ckpt_save"]), max_size=1)):
        story.tell(PhaseMarked(None, phase, "a line of the log that says so"))
    child = draw(st.none() | st.just(8000))
    for rank in range(world):
        workers = [process(8000 + rank, ppid=pid_of(rank), comm="pt_data_worker")] if child else []
        wchan = draw(st.sampled_from(["", "futex_wait_queue"]))
        story.tell(tree(rank, story.now, *workers, wchan=wchan))
        if lines := draw(st.sampled_from(STACKS)):
            story.tell(stack(rank, story.now, lines))
        if workers:
            story.tell(stack(rank, story.now, WORKER, pid=8000 + rank))
    for rank in draw(st.lists(st.integers(0, world - 1), max_size=2, unique=True)):
        story.exit(rank, *draw(st.sampled_from([(1, None), (None, 9), (None, None)])))
    story.wait(2.0)
    ranks = draw(st.permutations(range(world)))
    count = draw(st.sampled_from([0, 1, 1, 2, world]))
    culprits = tuple(sorted(ranks[:count]))
    waiting = tuple(sorted(ranks[count:])) if count == 0 or draw(st.booleans()) else ()
    if draw(st.integers(0, 9)) == 9:
        culprits = (*culprits, world + 1)  # one that never appeared
    verdict = Verdict(
        "unknown", culprits, waiting, "", story.now - 60.0, Confidence.MEDIUM,
        blamed_child=8000 + culprits[0] if child and culprits else None,
        collectives=draw(st.none() | recorded(range(world))),
        seconds=draw(st.sampled_from([None, 0.0, 120.0])),
        chain=draw(st.none() | chains()) if culprits else None,
    )  # fmt: skip
    return verdict, story.engine.job, story.now


def wrong(verdict: Verdict, job: JobView, now: float) -> list[str]:
    evidence = tuple(evidence_of(verdict, job, now))
    finding = Finding(
        id="hang",
        subject=JOB,
        severity=Severity.CRITICAL,
        confidence=verdict.confidence,
        ranks=verdict.culprits,
        waiting_ranks=verdict.waiting,
        since=verdict.since,
        summary=describe(verdict, job, now),
        advice=advice_for(verdict, job),
        evidence=evidence,
    )
    found = sentences.faults(finding, job)
    for text in (finding.summary, finding.advice):
        found += [f"too long: {len(text)}"] if len(text) > LONGEST else []
        found += [
            f"{part!r}"
            for part in ("  ", " ,", ",,", ",:", ",;", ", (", "None", "``", " )", "()")
            if part in text
        ]
        found += ["brackets"] if text.count("(") != text.count(")") or text.count("`") % 2 else []
    excerpts = {item.rank: item.excerpt for item in reversed(evidence) if item.kind == "pyspy"}
    for number in verdict.culprits[:3]:
        sample: StackSample | None = job.ranks[number].stack if number in job.ranks else None
        main = sample.main if sample is not None else None
        if main is not None and not excerpts.get(number, "").startswith(f"{main.frames[-1].function} ("):
            found.append(f"innermost frame of rank {number} is not shown: {excerpts.get(number)}")
    return found


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(judged())
def test_every_verdict_is_put_into_words_that_are_true_and_whole(
    drawn: tuple[Verdict, JobView, float],
) -> None:
    verdict, job, now = drawn
    for cause in CAUSES if verdict.culprits else OF_NOBODY:  # 100 jobs, some 5,000 verdicts
        found = wrong(replace(verdict, cause=cause, klass=entry_of(cause).classes[0]), job, now)
        one = replace(verdict, cause=cause)
        assert not found, f"{cause}: {found}\n{describe(one, job, now)}\n{advice_for(one, job)}"
