"""The options of launchers and of programs that only run another, by the tables of launchers.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diag.launch.launchers.tables import read_tables
from diag.text.errors import DiagError


class CommandError(DiagError):
    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, exit_code=2)


def tables() -> dict[str, dict[str, dict[str, Any]]]:
    """launchers.toml: kind of table -> program -> its row."""
    return read_tables("launchers.toml")


def runs_another(program: str) -> bool:
    """Whether the program only runs another, as nohup does."""
    return "source" not in tables()["options"].get(program, {"source": ""})


def read_options(words: Sequence[str], program: str) -> tuple[dict[str, list[str]], list[str]]:
    """The options of `program` with all their values ("" for a bare one) up to the first word that is none, and
    the rest; a-b is a_b.

    >>> read_options(["--nproc-per-node", "8", "--standalone", "t.py", "--x"], "torchrun")
    ({'--nproc_per_node': ['8'], '--standalone': ['']}, ['t.py', '--x'])
    >>> read_options("-itd -eA=1 --env B --privileged=false img".split(), "docker")
    ({'--env': ['A=1', 'B'], '--privileged': ['false']}, ['img'])
    >>> read_options("-N2 --label --x 3 python t.py".split(), "srun")
    ({'-N': ['2'], '--label': [''], '--x': ['3']}, ['python', 't.py'])
    """
    table = tables()["options"][program]
    letters = table.get("letters", "")
    letters = {letter: f"-{letter}" for letter in letters} if isinstance(letters, str) else letters
    valued = {*table.get("valued", ()), *letters.values()}
    found: dict[str, list[str]] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        index += 1
        if word == "--":
            break
        after = words[index] if index < len(words) else ""
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        elif letters:
            rest = word[1:].lstrip(table.get("bare_letters", ""))
            if not rest:
                continue
            name, equals, value = letters.get(rest[0], f"-{rest[0]}"), rest[1:2], rest[1:].removeprefix("=")
        name = table.get("also", {}).get(name, name)
        has_value = name not in table["bare"] if "bare" in table else name in valued
        if not equals and (
            has_value or (table.get("numbers") and name.startswith("--") and after.isdecimal())
        ):
            value = after
            index += 1
        found.setdefault(name, []).append(value)
    return found, list(words[index + table.get("words", 0) :])


def last_options(words: Sequence[str], program: str) -> tuple[dict[str, str], list[str]]:
    """The same; of an option that is given twice the last counts, as argparse has it."""
    found, rest = read_options(words, program)
    return {name: values[-1] for name, values in found.items()}, rest


def number(text: str, who: str) -> int | None:
    """None for no text. Raises CommandError for what is not a number of processes."""
    text = text.strip().rpartition(":")[2]  # torchrun's "1:4": least and most
    if not text:
        return None
    if "$" in text or "`" in text:
        raise CommandError(f"{who} is {text}: only the shell that starts it knows how many")
    if not text.isdecimal() or not 0 < int(text[:9]) <= 1_000_000:
        raise CommandError(f"{who} is {text!r}, not a number of processes")
    return int(text)


def first(
    options: Mapping[str, str], environment: Mapping[str, str], flag: str, variable: str
) -> tuple[str, str]:
    """The value, and the flag or the variable that it is from."""
    if options.get(flag):
        return options[flag], flag
    return (environment[variable], variable) if environment.get(variable) else ("", "")
