"""Which flags each command of ms-swift takes, by version, and what became of those that are gone. Pure."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache

from diag.knowledge import table

Version = tuple[int, int]

_OWN_TRAINER = (3, 0)  # from here on the arguments of training inherit from transformers' TrainingArguments


def version(text: str) -> Version | None:
    """
    >>> version("3.7.1"), version("4.6"), version("dev")
    ((3, 7), (4, 6), None)
    """
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


@cache
def versions() -> tuple[Version, ...]:
    """All that are recorded, oldest first."""
    return tuple(_version(text) for text in table("swift_flags")["versions"].split())


def has_command(command: str, of: Version) -> bool:
    return of in _commands().get(command, ())


def known(command: str) -> bool:
    return command in _commands()


def takes(command: str, name: str) -> frozenset[Version]:
    """The versions whose `command` ("swift sft") takes a flag, whose name is without its dashes."""
    return _flags().get(command, {}).get(name, frozenset())


def flags(command: str, of: Version) -> frozenset[str]:
    """Those that a command takes in a version."""
    return frozenset(name for name, spans in _flags().get(command, {}).items() if of in spans)


def all_flags(program: str) -> frozenset[str]:
    """Those of any version and of any command of swift or megatron."""
    of_program = (names for command, names in _flags().items() if command.startswith(f"{program} "))
    return frozenset(name for names in of_program for name in names)


def accepts(name: str, among: Iterable[str]) -> bool:
    """Whether transformers' HfArgumentParser takes a flag, where these are the fields: by name, as --no_NAME, and by the
    beginning of one name, as argparse does.

    >>> accepts("lora_r", ["lora_rank"]), accepts("save", ["save_steps", "save_strategy"]), accepts("no_bf16", ["bf16"])
    (True, False, True)
    """
    there = frozenset(among)
    return name in there or name.removeprefix("no_") in there or len(abbreviated(name, there)) == 1


def abbreviated(name: str, among: Iterable[str]) -> list[str]:
    """The fields that begin so: argparse calls a flag ambiguous that begins several."""
    return sorted(one for one in among if one.startswith(name))


def written_for(command: str, names: Iterable[str]) -> tuple[Version, ...]:
    """The versions that take all of these flags; those that no version takes are passed over."""
    found = set(_commands().get(command, ()))
    for name in names:
        spans = accepting(command, name)
        if spans:
            found &= spans
    return tuple(sorted(found))


def best_fitting(command: str, names: Iterable[str]) -> Version:
    """The newest of the versions that take most of these flags."""
    spans = [accepting(command, name) for name in names]
    there = _commands().get(command) or versions()
    return max(there, key=lambda one: (sum(one in of for of in spans), one))


@cache
def accepting(command: str, name: str) -> frozenset[Version]:
    """The versions whose parser takes a flag, abbreviations included."""
    exact = takes(command, name) | takes(command, name.removeprefix("no_"))
    begins = Counter(
        one for field, of in _flags().get(command, {}).items() if field.startswith(name) for one in of
    )
    return exact | frozenset(one for one, count in begins.items() if count == 1)


def instead(name: str, among: Iterable[str]) -> str:
    """The flag of the same meaning among these, "" where none is known."""
    there = frozenset(among)
    groups = (group.split() for group in table("swift_flag_advice")["same"])
    same = (one for names in groups if name in names for one in reversed(names))
    return next((one for one in same if one in there and one != name), "")


def near(name: str, among: Iterable[str]) -> str:
    """The flag among these that it may be a misspelling of."""
    return next(iter(difflib.get_close_matches(name, sorted(among), 1, 0.85)), "")


def span(of: Iterable[Version]) -> str:
    """
    >>> span([(3, 7), (3, 8)]), span([(4, 6)]), span([(3, 0), (3, 1), (4, 5), (4, 6)])
    ('3.7 to 3.8', '4.6 and later', '3.0 to 3.1, 4.5 and later')
    """
    everything, wanted = versions(), frozenset(of)
    parts: list[list[Version]] = []
    for at, one in enumerate(everything):
        if one in wanted:
            if parts and parts[-1][-1] == everything[at - 1]:
                parts[-1].append(one)
            else:
                parts.append([one])
    return ", ".join(_span(part) for part in parts)


def _span(part: list[Version]) -> str:
    first, last = dotted(part[0]), dotted(part[-1])
    if part[-1] == versions()[-1]:
        return f"{first} and later"
    return first if first == last else f"{first} to {last}"


def dotted(one: Version) -> str:
    return f"{one[0]}.{one[1]}"


@cache
def _commands() -> dict[str, frozenset[Version]]:
    return {command: _among(text) for command, text in table("swift_flags")["commands"].items()}


@cache
def _flags() -> dict[str, dict[str, frozenset[Version]]]:
    """Command -> flag -> versions."""
    recorded = table("swift_flags")
    found: dict[str, dict[str, frozenset[Version]]] = {command: {} for command in _commands()}
    for key, names in recorded["flags"].items():
        for part in key.split("; "):  # "megatron sft, megatron pt 3.2-3.12 4.1-4.6"
            *others, last = part.split(", ")
            program, verb, *spans = last.split()
            of = _among(" ".join(spans))
            for command in (*others, f"{program} {verb}"):
                found[command].update(dict.fromkeys(names.split(), of))
    for command in ("swift sft", "swift pt", "swift rlhf"):
        since = frozenset(one for one in _commands()[command] if one >= _OWN_TRAINER)
        for name in recorded["transformers"].split():
            found[command][name] = found[command].get(name, frozenset()) | since
    return found


def _among(spans: str) -> frozenset[Version]:
    """
    >>> sorted(_among("2.5-3.0 4.6"))
    [(2, 5), (2, 6), (3, 0), (4, 6)]
    """
    ends = [[_version(end) for end in span.split("-")] for span in spans.split()]
    return frozenset(one for one in versions() if any(part[0] <= one <= part[-1] for part in ends))


def _version(text: str) -> Version:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
