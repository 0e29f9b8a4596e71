from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model import Change, ChangeKind, Confidence, Evidence, Finding, NotChecked, Severity
from diag.outputs.terminal.text import classes_text, panel, report_text
from diag.outputs.view.classes import stack_classes
from diag.outputs.view.sentence import summary_line
from diag.text.columns import columns
from diag.text.sanitize import clean

ANY_TEXT = st.text(st.characters(), max_size=300)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def opened(finding: Any) -> Change:
    return Change(ChangeKind.OPENED, finding, 1040.0, 1040.0)


def test_panel_says_what_who_and_what_to_do_before_the_grounds(kit: Any) -> None:
    assert panel(opened(kit.finding()), width=100) == (
        "diag| CRITICAL hang (data_loading): rank 3; 00:17:20, high confidence\n"
        "diag|   rank 3 waits for its DataLoader since 40 s; ranks 0-2 wait in all_reduce (4 of 4 ranks seen)\n"
        "diag|   do: look at what __getitem__ of /app/train.py:19 reads\n"
        "diag|   waiting: ranks 0-2; cause: dataloader_worker_blocked\n"
        "diag|   [pyspy, rank 3] _try_get_data (torch/utils/data/dataloader.py:1310)"
    )


def test_long_list_of_culprits_stands_below_and_their_number_in_the_title(kit: Any) -> None:
    text = panel(opened(kit.finding(ranks=tuple(range(0, 64, 2)))), width=160)

    assert text.startswith("diag| CRITICAL hang (data_loading): 32 ranks; 00:17:20")
    assert "\ndiag|   culprit: ranks 0,2,4,6,8," in text.replace(", ", ",")


def test_update_and_resolution_say_after_how_long(kit: Any) -> None:
    updated = panel(Change(ChangeKind.UPDATED, kit.finding(), 1052.0, 1040.0))
    resolved = panel(Change(ChangeKind.RESOLVED, kit.finding(), 1101.0, 1040.0))

    assert "CRITICAL hang (data_loading): rank 3; changed after 12 s" in updated
    assert (
        resolved
        == "diag| RESOLVED hang (data_loading): rank 3; over after 1 min 41 s\ndiag|   (00:16:40-00:18:21)"
    )


def test_resolution_of_a_hang_names_who_was_seen_to_move_and_not_who_was_not(kit: Any) -> None:
    change = Change(ChangeKind.RESOLVED, kit.finding(ranks=(2, 3)), 1101.0, 1040.0, moved_again=(3,))

    assert panel(change, width=100) == (
        "diag| RESOLVED hang (data_loading): rank 3 moves again after 1 min 41 s (00:16:40-00:18:21)"
    )
    assert change.to_json()["finding"]["resolved_at"] == 1101.0 and change.to_json()["moved_again"] == [3]


def test_finding_that_another_took_the_place_of_is_not_called_over(kit: Any) -> None:
    change = Change(ChangeKind.RESOLVED, kit.finding(), 1101.0, 1040.0, replaced=True)

    assert (
        panel(change, width=100)
        == "diag| RESOLVED hang (data_loading): rank 3; another finding takes its place"
    )
    assert "resolved_at" not in change.to_json()["finding"]


def test_colour_only_repeats_the_word(kit: Any) -> None:
    plain, painted = panel(opened(kit.finding())), panel(opened(kit.finding()), colour=True)

    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == plain
    assert "\x1b[1;31mCRITICAL\x1b[0m hang" in painted


def test_log_text_cannot_move_the_cursor_or_forge_a_line_of_ours(kit: Any) -> None:
    # what a log line could try: clear the screen, set the title, go to the line's start, ring, turn text
    # around
    nasty = "\x1b[2J\x1b]0;owned\x07ok\rdiag| INFO all is well\x07 \u202etxet\x9b31m \x1bPq\x1b\\ end"
    text = panel(opened(kit.finding(evidence=(Evidence("log", nasty, 1.0, 3),))))

    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert all(line.startswith("diag| ") for line in text.split("\n"))
    assert not re.search("^diag\\| INFO", text, re.MULTILINE)


@given(st.integers(30, 120), st.integers(0, 12))
def test_evidence_is_wrapped_and_never_cut_before_the_line_of_a_file(width: int, deep: int) -> None:
    place = "/home/me/project/" + "package/" * deep + "data/shards.py:1064"
    evidence = Evidence(
        "stacks", f"_read_shard ({place}) < __getitem__ (/home/me/project/train.py:12)", 1.0, rank=3
    )
    finding = Finding("hang", "job", Severity.CRITICAL, Confidence.HIGH, "s", "a", 1.0, evidence=(evidence,))

    text = panel(opened(finding), width=width).replace("\ndiag|", "")

    assert place in re.sub(r"\s", "", text) and "train.py:12" in re.sub(r"\s", "", text)


def test_of_very_long_evidence_the_middle_is_left_out(kit: Any) -> None:
    words = [f"word{n}" for n in range(1000)]
    finding = Finding(
        "hang",
        "job",
        Severity.CRITICAL,
        Confidence.HIGH,
        "s",
        "a",
        1.0,
        evidence=(Evidence("output", " ".join(words)[:1990], 1.0),),
    )

    lines = panel(opened(finding), width=80).splitlines()

    assert len(lines) < 20 and "[output] word0 word1 " in lines[3]
    assert " ... word" in "".join(lines)


def test_long_evidence_is_cut_to_its_last_lines(kit: Any) -> None:
    traceback = "\n".join(f"line {n}" for n in range(500)) + "\nRuntimeError: boom\n"
    text = panel(opened(kit.finding(evidence=(Evidence("log", traceback, 1.0),))))

    assert text.count("\n") == 7  # head, summary in two, who, three of the log, advice
    assert "RuntimeError: boom" in text and "line 497" not in text


def test_many_pieces_of_evidence_are_counted(kit: Any) -> None:
    pieces = tuple(Evidence("log", f"piece {n}", 1.0, n) for n in range(9))

    text = panel(opened(kit.finding(evidence=pieces)))

    assert "piece 2" in text and "piece 3" not in text
    assert "and 6 more" in text


def test_chinese_log_text_is_kept_and_fits(kit: Any) -> None:
    # ms-swift users' data sets and paths; each of these characters takes two columns
    text = panel(opened(kit.finding(evidence=(Evidence("log", "数据集加载失败：" * 20, 1.0, 0),))), width=80)

    assert "数据集加载失败" in text
    assert all(columns(line) <= 80 for line in text.split("\n"))


@given(
    summary=ANY_TEXT,
    excerpt=ANY_TEXT,
    advice=ANY_TEXT,
    cause=ANY_TEXT,
    width=st.integers(0, 200),
    colour=st.booleans(),
)
def test_panel_of_any_text_prints_and_fits(
    kit: Any, *, summary: str, excerpt: str, advice: str, cause: str, width: int, colour: bool
) -> None:
    found = kit.finding(
        summary=summary, advice=advice, cause=cause, evidence=(Evidence("log", excerpt, 1.0, 3), Evidence("k" * 90, excerpt, 2.0))
    )  # fmt: skip
    text = re.sub(r"\x1b\[[0-9;]*m", "", panel(opened(found), colour, width))

    for line in text.split("\n"):
        assert line.isprintable() and line.startswith("diag| ")
        assert columns(line) <= max(width, 30)


@given(ANY_TEXT)
def test_clean_text_is_printable_and_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)


def test_cleaning_an_endless_sequence_ends() -> None:
    assert clean("\x1b]" * 100_000) == ""
    assert clean("\x1b[" + "0;" * 100_000) is not None


def test_report_has_job_findings_and_what_was_not_checked(hung: Any) -> None:
    hung.says.lines = [NotChecked("gpu", "no NVML library", "install the driver")]

    text = report_text(hung.report(), width=100)
    classes = stack_classes(hung.engine)

    assert text.startswith(
        "The job is hung; phase first_step; 4 of 4 ranks seen; 1 critical; 1 not checked.\n"
    )
    assert "\nCRITICAL hang (data_loading): rank 3; high confidence, since 1970-01-01 00:16:40\n" in text
    assert classes_text(classes, 100).startswith(
        "ranks 0-3 share:\n    <module> (/app/train.py:83)\n  rank 3: data in __next__ (torch"
    )
    assert (
        "\n  ranks 0-2: collective in all_reduce (torch/distributed/distributed_c10d.py:3173); unchanged for 30 s\n"
        in classes_text(classes, 120)
    )
    assert text.endswith("Not checked:\n  gpu: no NVML library -> install the driver")


def test_report_without_findings_says_so_and_not_more(hub: Any) -> None:
    text = report_text(hub.report(), heading="12 checks of this machine")

    assert text == "12 checks of this machine"
    assert "nothing found" in report_text(hub.report())


def test_deep_stacks_show_their_innermost_frames(hub: Any, kit: Any) -> None:
    deep = tuple(kit.Frame(f"f{n}", "/app/train.py", n) for n in range(40))
    hub.tell(1036.0, kit.stack(0, deep))

    text = classes_text(stack_classes(hub.engine), frames=3)

    assert "    ... 37 outer frames\n    f37 (/app/train.py:37)\n    f38" in text


def test_summary_names_each_finding_once(kit: Any, hung: Any) -> None:
    hung.says.findings += [
        kit.finding(id="rank-died", klass="", subject=f"rank {n}", severity=Severity.WARNING)
        for n in range(2)
    ]
    hung.engine.advance(1060.0)

    assert summary_line(hung.report(), seconds=192, run_dir="/tmp/run\x1b[2J") == (
        "diag: job hung after 3 min 12 s; found 1 critical: hang (data_loading); 2 warning: rank-died; "
        "what to do: diag explain hang; look again: diag replay /tmp/run --serve"
    )


def test_summary_names_the_page_of_the_gravest_and_first_finding(kit: Any, hung: Any) -> None:
    document = hung.report()
    later = {**document["findings"][0], "id": "rank-died", "since": document["findings"][0]["since"] + 5.0}
    noted = {**later, "id": "env-no-effect", "severity": "info", "since": 0.0}

    assert "diag explain hang;" in summary_line(
        {**document, "findings": [noted, later, *document["findings"]]}, run_dir="/r"
    )
    assert summary_line({**document, "findings": [noted]}, run_dir="/my runs/1").endswith(
        "; evidence in /my runs/1"
    )
    assert summary_line(document, run_dir="/my runs/1").endswith(
        "; look again: diag replay '/my runs/1' --serve"
    )
