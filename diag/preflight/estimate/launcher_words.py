"""A launcher's own words: its options with their values, and numbers of processes and nodes."""

from __future__ import annotations

from collections.abc import Mapping

from diag.preflight.estimate.errors import EstimateError

__all__ = ["after_options", "first", "number", "split_options"]


def number(text: str, who: str) -> int | None:
    text = text.strip().rpartition(":")[2]  # torchrun's "1:4": least and most
    if not text:
        return None
    if not text.isdecimal() or not 0 < int(text[:9]) <= 1_000_000:
        raise EstimateError(f"{who} is {text!r}, which is no number of processes")
    return int(text)


def split_options(words: list[str], bare: frozenset[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values ("" for a bare one) up to the first word that is none, and the rest."""
    found: dict[str, str] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        name, equals, value = words[index].partition("=")
        name = name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name
        if equals or name in bare or words[index] in bare:
            found[name] = value
            index += 1
        else:
            found[name] = words[index + 1] if index + 1 < len(words) else ""
            index += 2
    return found, words[index:]


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
