"""The tables of launchers.toml, and the one reader over them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from diag.launch.launchers.command.options import read_options, tables


@pytest.mark.parametrize("kind", ["options", "rendezvous"])
def test_every_table_of_a_launcher_says_where_it_is_from(kind: str) -> None:
    for name, row in tables()[kind].items():
        wraps_only = kind == "options" and not {"bare", "valued"} & row.keys()
        assert wraps_only or any(digit in row["source"] for digit in "0123456789") or name == "script", name


def test_tables_have_only_keys_that_are_read() -> None:
    known = {
        "options": {"source", "bare", "valued", "letters", "bare_letters", "also", "numbers", "words"},
        "rendezvous": {"source", "nodes", "address", "port", "rank", "default_rank"},
    }
    assert {kind: {key for row in rows.values() for key in row} for kind, rows in tables().items()} == known


def test_names_are_written_as_they_are_looked_up() -> None:
    """a-b is read as a_b: a name with a hyphen in the table would never be met."""
    for program, row in tables()["options"].items():
        letters = row.get("letters", {})
        names = [*row.get("bare", ()), *row.get("valued", ()), *row.get("also", {}).values()]
        names += [] if isinstance(letters, str) else letters.values()
        assert [name for name in names if "-" in name.removeprefix("--")[1:]] == [], program


@pytest.mark.parametrize(
    "program, words, options, rest",
    [
        ("nice", "-n 5 python t.py", {"-n": ["5"]}, "python t.py"),
        ("nice", "-n5 python t.py", {"-n": ["5"]}, "python t.py"),
        ("timeout", "-k 5 60 python t.py", {"-k": ["5"]}, "python t.py"),
        ("taskset", "-c 0-3 python t.py", {"-c": [""]}, "python t.py"),
        ("stdbuf", "-oL python t.py", {"-o": ["L"]}, "python t.py"),
        ("nohup", "python t.py", {}, "python t.py"),
        (
            "deepspeed",
            "-H hosts --no-ssh t.py -i x",
            {"--hostfile": ["hosts"], "--no_ssh": [""]},
            "t.py -i x",
        ),
        ("docker", "--net host --rm img -it", {"--network": ["host"], "--rm": [""]}, "img -it"),
        ("torchrun", "-- t.py --x", {}, "t.py --x"),
        ("srun", "-n", {"-n": [""]}, ""),
    ],
)
def test_words_of_a_program_end_where_the_command_begins(
    program: str, words: str, options: dict[str, list[str]], rest: str
) -> None:
    assert read_options(words.split(), program) == (options, rest.split())


def test_the_carrier_reads_no_table() -> None:
    code = "import sys, diag.launch.carrier, diag.cli.run; print('tomllib' in sys.modules, 'yaml' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == ["False", "False"]
