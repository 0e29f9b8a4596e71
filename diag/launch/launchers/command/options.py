"""A launcher's own options with their values, and numbers of processes and nodes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from diag.launch.launchers.command.errors import CommandError


def number(text: str, who: str) -> int | None:
    """None for no text. Raises CommandError for what is no number of processes."""
    text = text.strip().rpartition(":")[2]  # torchrun's "1:4": least and most
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text[:9]) <= 1_000_000:
        raise CommandError(f"{who} is {text!r}, which is no number of processes")
    return int(text)


def split_options(
    words: Sequence[str], bare: Container[str], valued: str = ""
) -> tuple[dict[str, str], list[str]]:
    """Options with their values ("" for a bare one) up to the first word that is none, and the rest; a-b is
    a_b, and of two the last wins, as argparse has it. `valued` are letters whose value may be joined: -N2.

    >>> split_options(["--nproc-per-node", "8", "-N2", "--rm", "t.py", "--x"], {"--rm"}, "N")
    ({'--nproc_per_node': '8', '-N': '2', '--rm': ''}, ['t.py', '--x'])
    """
    found: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        name, equals, value = word.partition("=")
        if word == "--":
            index += 1
            break
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        elif name[1:2] in valued and len(word) > 2:
            name, equals, value = name[:2], "=", word[2:].removeprefix("=")
        if equals or name in bare or word in bare:
            found[name] = value
            index += 1
        else:
            found[name] = words[index + 1] if index + 1 < len(words) else ""
            index += 2
    return found, list(words[index:])


def after_options(words: list[str], valued: frozenset[str]) -> list[str]:
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 2 if words[index] in valued else 1
    return words[index:]


def first(
    options: Mapping[str, str], environment: Mapping[str, str], flag: str, variable: str
) -> tuple[str, str]:
    """The value, and who told it."""
    if options.get(flag):
        return options[flag], flag
    return (environment[variable], variable) if environment.get(variable) else ("", "")
