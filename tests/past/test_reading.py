"""What is remembered of one run, also where its files are torn or a stranger's."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from diag.cli.runs import table
from diag.launch.past.index import all_runs
from diag.launch.past.reading import read_past, unpacked
from diag.text.errors import DiagError
from tests.past.made import facts, finding, living, run_dir


def test_run_that_has_ended_is_told_with_its_end_and_steps(tmp_path: Path) -> None:
    run = read_past(str(run_dir(tmp_path, told=facts())))

    assert (run.state, run.returncode, run.seconds, run.step, run.steps) == ("finished", 0, 99.0, 20, 20)
    assert run.final and run.evidence_kept and run.succeeded


def test_run_with_an_exit_code_has_failed(tmp_path: Path) -> None:
    assert read_past(str(run_dir(tmp_path, returncode=1))).state == "failed"


@pytest.mark.parametrize(
    ("found", "state"), [((), "running"), ((finding("held-up"),), "held-up"), ((finding("hang"),), "hung")]
)
def test_living_run_is_running_held_up_or_hung(tmp_path: Path, found: tuple, state: str) -> None:
    run = read_past(str(living(tmp_path, found=found)))

    assert (run.state, run.ended, run.final) == (state, None, False)


def test_job_whose_hub_was_killed_is_unwatched_while_it_goes_on(tmp_path: Path) -> None:
    path = run_dir(tmp_path, ended=False, returncode=None, pid=os.getpid())

    assert read_past(str(path)).state == "unwatched"


def test_run_whose_hub_and_job_are_gone_ends_as_the_carrier_wrote(tmp_path: Path) -> None:
    path = run_dir(tmp_path, ended=False, returncode=None)
    assert read_past(str(path)).state == "unknown"

    (path / "ended.json").write_text('{"returncode": 137, "at": 1795000050.0}\n')

    run = read_past(str(path))
    assert (run.state, run.returncode, run.ended, run.final) == ("failed", 137, 1795000050.0, True)


def test_end_that_nobody_wrote_is_not_guessed_and_not_final_at_once(tmp_path: Path) -> None:
    path = run_dir(tmp_path, ended=False, returncode=None)
    assert not read_past(str(path)).final

    long_ago = time.time() - 3600
    os.utime(path / "run.json", (long_ago, long_ago))

    run = read_past(str(path))
    assert (run.state, run.final) == ("unknown", True)


def test_run_of_another_host_lives_while_its_files_are_written(tmp_path: Path) -> None:
    path = run_dir(tmp_path, ended=False, returncode=None, host="elsewhere")
    assert read_past(str(path)).state == "running"

    long_ago = time.time() - 3600
    os.utime(path / "run.json", (long_ago, long_ago))

    run = read_past(str(path))
    assert (run.state, run.final) == ("unknown", False)


def test_findings_are_told_in_their_last_form_gravest_first(tmp_path: Path) -> None:
    found = (
        finding("slow", severity="warning"),
        finding("held-up", severity="warning"),
        finding("held-up", severity="warning", change="resolved", replaced=True),
        finding("hang", ranks=(1,)),
        finding("hang", ranks=(3,), klass="data_loading", change="updated"),
        finding("slow", severity="warning", change="resolved"),
    )

    run = read_past(str(run_dir(tmp_path, found=found)))

    assert [(one.id, one.klass, one.ranks, one.open) for one in run.findings] == [
        ("hang", "data_loading", (3,), True),
        ("slow", "", (3,), False),
    ]
    assert not run.succeeded


def test_secrets_of_a_command_are_hidden_whoever_wrote_it(tmp_path: Path) -> None:
    path = run_dir(tmp_path, argv=["swift", "sft", "--hub_token", "hf_abcdefghijklmnop"])

    run = read_past(str(path))

    assert run.argv[-1] == "***"
    assert "hf_abc" not in json.dumps(run.packed())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]\n{}\n",
        '{"finding": 3}\n',
        '{"finding": {"id": 7, "ranks": "x", "severity": []}}\n',
        "\0" * 50,
    ],
)
def test_findings_that_are_none_are_passed_over(tmp_path: Path, text: str) -> None:
    path = run_dir(tmp_path)
    (path / "findings.jsonl").write_text(text + "\n" + json.dumps(finding("hang")) + "\n")

    assert "hang" in [one.id for one in read_past(str(path)).findings]


def test_torn_line_at_the_end_hides_none_before_it(tmp_path: Path) -> None:
    path = run_dir(tmp_path, found=(finding("hang"),))
    with (path / "findings.jsonl").open("a") as file:
        file.write('{"change": "opened", "finding": {"id": "host-o')

    assert [one.id for one in read_past(str(path)).findings] == ["hang"]


def test_files_that_never_end_or_lead_elsewhere_are_not_read(tmp_path: Path) -> None:
    path = run_dir(tmp_path)
    os.mkfifo(path / "findings.jsonl")
    (tmp_path / "other.json").write_text(json.dumps(facts(iteration=7)))
    (path / "facts.json").symlink_to(tmp_path / "other.json")

    run = read_past(str(path))

    assert (run.findings, run.facts) == ((), {})


@pytest.mark.parametrize(
    "given",
    [
        {"started_at": "soon"},
        {"started_at": 1e300},
        {"started_at": True},
        {"returncode": "x", "argv": {"a": 1}},
        {"host": None, "argv": [None, 3]},
        {"ended": False, "hub_pid": "x", "pid": 1e400},
    ],
)
def test_run_json_of_any_content_is_told_as_far_as_it_goes(tmp_path: Path, given: dict) -> None:
    path = run_dir(tmp_path, **given)

    run = read_past(str(path))

    assert unpacked(json.loads(json.dumps(run.packed())), str(path)) == run


def test_table_numbers_this_hosts_runs_and_names_nodes_where_there_are_several(tmp_path: Path) -> None:
    for number, host in enumerate([None, "elsewhere", None]):
        run_dir(tmp_path, number, **({"host": host} if host else {}))

    lines = table(all_runs([str(tmp_path)]), str)

    assert "node" in lines[0]
    assert [line[:2] for line in lines] == ["  ", "-1", "  ", "-2"]


def test_command_is_cut_to_the_terminal_and_escapes_are_shown(tmp_path: Path) -> None:
    run_dir(tmp_path, argv=["python", "a" * 200, "\x1b[2J"])
    known = all_runs([str(tmp_path)])

    assert all(len(line) <= 120 for line in table(known, str, 120))
    assert "\x1b" not in "".join(table(known, str))


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DiagError):
        read_past(str(tmp_path))
