"""Why work, or a loop, does not end, by the program's text: and where the text does not say so, nothing is claimed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diag.detectors.hang.reasons import literal, nested_repetition
from diag.model import Finding
from diag.model.observations.waits import Party, Wait
from tests.detectors.looped import TEXT, at, busy, sleeping, write
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import REDUCE, read
from tests.facts import pid_of
from tests.programs import line_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path)


# -- one call


@pytest.mark.parametrize(("mark", "name"), [("nested", "FINAL"), ("plain", "WORD"), ("imported", "SLUG")])
def test_regular_expression_at_the_line_is_quoted_with_where_it_is_made(
    path: Path, mark: str, name: str
) -> None:
    found = busy(path, at(path, "search", mark))

    assert (found.cause, found.klass) == ("regular_expression", "peer_not_joined")
    assert f"goes into the regular expression {name} `" in found.summary
    assert ("backtracks" in found.summary) is (mark != "plain")
    assert "matched in one way only" in found.advice
    assert ("keep one of the two" in found.advice) is (mark != "plain")
    if mark == "imported":
        assert f"({path.parent}/patterns.py:3)" in found.summary


def test_function_of_re_is_known_by_its_own_frame(path: Path) -> None:
    found = busy(path, at(path, "search", "function"), "search /usr/lib/python3.11/re/__init__.py:176")

    assert found.cause == "regular_expression" and "expression WORD `" in found.summary


@pytest.mark.parametrize("mark", ["with-others", "no-call", "of-a-text"])
def test_line_that_does_more_or_less_than_search_blames_no_expression(path: Path, mark: str) -> None:
    assert busy(path, at(path, "search", mark)).cause == "busy"


def test_line_that_called_python_code_is_not_in_its_expression(path: Path) -> None:
    found = busy(path, at(path, "search", "nested"), at(path, "query", "no-query"))

    assert found.cause == "busy"


@pytest.mark.parametrize(
    ("mark", "advice"),
    [("recursive", "UNION ALL never ends where its rows form a circle"), ("join", "EXPLAIN")],
)
def test_query_is_quoted_and_its_advice_follows_from_its_text(path: Path, mark: str, advice: str) -> None:
    found = busy(path, at(path, "query", mark), gil=False)

    assert found.cause == "database_query"
    assert "WITH RECURSIVE up" in found.summary or "SELECT a.id FROM a, b" in found.summary
    assert advice in found.advice


def test_call_that_is_no_query_is_none(path: Path) -> None:
    assert busy(path, at(path, "query", "no-query")).cause == "busy"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('re.compile(r"a(b)" "c", re.X).search(x)', "a(b)c"),
        ("re.compile(b'a')", "a"),
        ("re.compile('a' + name)", ""),
        ("re.compile('a ...", ""),
        ("re.compile(" * 300, ""),
    ],
)
def test_pattern_is_read_where_it_is_a_literal_and_whole(text: str, pattern: str) -> None:
    assert literal(text) == pattern


@pytest.mark.parametrize("pattern", ["(a+)+", "(?:x*y?)*", "(?i:(a|b+)+)", "(?P<n>(a+?)+)"])
def test_repetition_inside_of_a_repetition_is_found(pattern: str) -> None:
    assert nested_repetition(pattern)


@pytest.mark.parametrize("pattern", ["a+b+", "(a{2,3})+", "(ab)+", "(a", "a**", r"\d+(?:\.\d{1,3})?"])
def test_other_repetition_is_not(pattern: str) -> None:
    assert not nested_repetition(pattern)


# -- loops that sleep


@pytest.mark.parametrize(
    ("mark", "cause", "advice"),
    [
        ("appears", "polls_for_file", "both mean the same path"),
        ("goes-away", "polls_for_lock_file", "left behind"),
        ("made-alone", "polls_for_lock_file", "left behind"),
        ("process", "polls_for_process", "zombie"),
        ("flag", "polls_for_thread", "is still alive"),
        ("service", "polls_for_service", "what it answers"),
        ("returned", "polls_for_file", "both mean the same path"),
        ("number", "polls", "who should change it"),
        ("counts", "gets_on_slowly", "limit of bandwidth"),
        ("counts-fails", "retries", "print the exception"),
        ("counts-some", "polls", "who should change it"),
        ("counts-away", "polls", "who should change it"),
        ("again", "retries", "print the exception"),
        ("repeated", "retries", "print the exception"),  # it counts only what succeeds
        ("tried-some", "retries", "print the exception"),
        ("counted-files", "polls_for_number_of_files", "What an earlier run left there is counted too"),
    ],
)
def test_advice_follows_from_what_the_loop_looks_at(path: Path, mark: str, cause: str, advice: str) -> None:
    found = sleeping(path, mark)

    assert found.cause == cause
    assert advice in found.advice


def test_statement_that_failed_is_not_said_to_change_the_condition(path: Path) -> None:
    found = sleeping(path, "repeated")

    assert "whose condition would change by `done += os.pwrite(" in found.summary
    assert "comes to its end" not in found.advice and "gets on" not in found.advice


def test_path_that_is_looked_at_is_shown_as_it_is_made(path: Path) -> None:
    found = sleeping(path, "appears")

    assert 'marker is `cfg.run_dir / f"step_{step}" / "COMPLETE"` (' in found.summary


# -- lock files

ACQUIRE = "acquire filelock/_api.py:1037"


@pytest.mark.parametrize(
    ("mark", "cause", "advice"),
    [("soft", "polls_for_lock_file", "left behind"), ("hard", "file_lock_not_free", "fuser")],
)
def test_lock_of_filelock_is_known_by_the_line_that_takes_it(
    path: Path, mark: str, cause: str, advice: str
) -> None:
    place = f"cached {path}:{line_of(TEXT, mark) - 1}"
    found = in_call(path, place, ACQUIRE)

    assert (found.cause, found.klass) == (cause, "lock_deadlock")
    assert advice in found.advice and "compiler" not in found.advice
    assert ("lock is `SoftFileLock(" in found.summary) is (mark == "soft")


def test_lock_of_torchs_own_extensions_keeps_its_advice(path: Path) -> None:
    found = in_call(path, at(path, "cached", "soft"), "wait torch/utils/file_baton.py:50")

    assert found.cause == "stale_file_lock" and "no compiler runs" in found.advice


def in_call(path: Path, *inner: str) -> Finding:
    top = at(path, "<module>", "top")
    stacks = {0: [top, at(path, "main", "reduces"), REDUCE], 1: [top, at(path, "main", "steps"), *inner]}
    story = steady()
    story.still(30.0, stacks)
    for rank in (0, 1):
        read(story, path, rank, stacks[rank])
    story.still(60.0, stacks)
    return story.the("held-up")


# -- a file that another process has locked


LOCKED = Wait("sleep", path="/srv/runs.db", others=(Party(77, command="page.py"),))


def test_sleep_in_a_call_that_is_no_sleep_is_for_the_lock_on_its_file(path: Path) -> None:
    found = sleeping(path, "join", "query", LOCKED)

    assert found.cause == "file_locked"
    assert "it has /srv/runs.db open, on which pid 77 (`page.py`) holds a lock, which waits" in found.summary
    assert "process 77 (`page.py`)" in found.advice and "commit" in found.advice


def test_rank_that_keeps_the_lock_and_waits_for_who_tries_it_is_to_blame(path: Path) -> None:
    """Whether the library tries again by itself, or the program does in a handler."""
    kept = replace(LOCKED, others=(Party(pid_of(0), command="train.py", rank=0),))
    for mark, function in (("join", "query"), ("again", "wait")):
        found = sleeping(path, mark, function, kept)

        assert (found.cause, found.ranks, found.waiting_ranks) == ("keeps_file_locked", (0,), (1,))
        assert "rank 1 tries again and again to lock /srv/runs.db in " in found.summary
        assert "commit or roll back" in found.advice


def test_transaction_that_a_rank_keeps_open_while_it_waits_for_the_one_who_wants_to_write_is_named(
    path: Path,
) -> None:
    """By the byte that SQLite locks."""
    holder = Party(pid_of(0), command="train.py", rank=0)
    found = sleeping(
        path, "join", "query", replace(LOCKED, others=(holder,), lock="POSIX WRITE 1073741825 1073741825")
    )

    assert (found.cause, found.ranks, found.waiting_ranks) == ("keeps_database_locked", (0,), (1,))
    assert (
        "of which rank 0 has SQLite's RESERVED lock: a transaction has written and was not ended"
        in found.summary
    )
    assert (
        "; rank 0 waits in all_reduce (from main, " in found.summary
        and "for rank 1: each waits" in found.summary
    )
    assert "commit at the end of the epoch" in found.advice


def test_sleep_of_the_program_itself_is_for_no_lock(path: Path) -> None:
    assert sleeping(path, "appears", wait=LOCKED).cause == "polls_for_file"


def test_sleep_in_a_call_with_nothing_locked_stays_a_sleep(path: Path) -> None:
    assert sleeping(path, "join", "query").cause == "sleeps"
