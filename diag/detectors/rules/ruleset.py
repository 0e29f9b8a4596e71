"""Rules made ready: one automaton over all literals finds the few rules that a line can be for, their RE2
decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import re2
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from diag.detectors.rules.schema import Pattern, Rule

_MEMORY = 64 << 20  # of the automaton: with RE2's 8 MiB some hundred literals make it forget states, and slow
_NEVER = r"\b\B"
LONGEST = 4096  # characters of a line that are read: what matters is at its beginning


def _options(memory: int = 8 << 20) -> Any:
    options = re2.Options()
    options.max_mem = memory
    options.log_errors = False
    return options


@dataclass(frozen=True, slots=True)
class Match:
    """A line that a pattern is for. `role` of the pattern in its rule: match, also or unless, and its number
    there."""

    rule: Rule
    role: str
    number: int
    groups: Mapping[str, str]


@dataclass(slots=True)
class _Compiled:
    rule: Rule
    role: str
    number: int
    literal: str
    regex: Any  # a compiled RE2, or None
    text: str | None = None  # of the regex, where it is compiled when a line first asks for it

    def search(self, message: str) -> Any:
        if self.text is not None:
            try:
                self.regex = compiled(self.text)
            except ValueError:  # an installation that is damaged: this one never fits, the others do
                self.regex = re2.compile(_NEVER)
            self.text = None
        return self.regex.search(message)


class RuleSet:
    """Raises ValueError, with the rule's id and the pattern, for a regex that RE2 does not take.

    `checked`: tests have seen to that. Each of hundreds is then compiled when a line first asks for it, and
    most never are.
    """

    def __init__(self, rules: Sequence[Rule], *, checked: bool = False) -> None:
        self.rules = tuple(rules)
        self.by_id = {rule.id: rule for rule in rules}
        self._ranges = {
            rule.id: tuple((package, SpecifierSet(versions)) for package, versions in rule.applies.items())
            for rule in rules
        }
        by_literal: dict[str, list[_Compiled]] = defaultdict(list)
        for rule in rules:
            for role, patterns in (("match", rule.match), ("also", rule.also), ("unless", rule.unless)):
                for number, pattern in enumerate(patterns):
                    late = _Compiled(rule, role, number, pattern.literal, None, pattern.regex)
                    made = late if checked else _compile(rule, role, number, pattern)
                    by_literal[pattern.literal].append(made)
        self._of_literal = [by_literal[literal] for literal in by_literal]
        self.literals = tuple(by_literal)
        self.kernel_words = tuple(
            pattern.literal for rule in rules if rule.source == "kernel" for pattern in rule.match
        )
        self._set = self._any = None
        if self.literals:
            self._set = re2.Set.SearchSet(_options(_MEMORY))
            for literal in self.literals:
                self._set.Add(re2.escape(literal))
            self._set.Compile()
            self._any = re2.compile("|".join(map(re2.escape, self.literals)).encode(), _options(_MEMORY))

    def lines_in(self, text: str) -> Iterator[str]:
        """Of many lines in one text those that some rule may be for: half a gigabyte a second."""
        if self._any is None or not text:
            return
        data = text.encode("utf-8", "replace")
        at = 0
        while (match := self._any.search(data, at)) is not None:
            begin, end = data.rfind(b"\n", 0, match.start()) + 1, data.find(b"\n", match.end())
            end = len(data) if end < 0 else end
            yield data[begin : min(end, begin + LONGEST)].decode("utf-8", "replace")
            at = end

    def candidates(self, text: str) -> list[int]:
        """Numbers of the literals that are in a line: a microsecond or two. Nearly always none."""
        if self._set is None:
            return []
        return self._set.Match(text[:LONGEST].encode("utf-8", "replace")) or []

    def find(self, candidates: Sequence[int], message: str) -> list[Match]:
        """Patterns that a line is for, by its candidates and its message: the line without its prefixes."""
        if not candidates:
            return []
        # half of a surrogate pair is no text to RE2
        message = message[:LONGEST].encode("utf-8", "replace").decode()
        found = []
        for number in candidates:
            for one in self._of_literal[number]:
                if one.regex is None and one.text is None:
                    if one.literal in message:
                        found.append(Match(one.rule, one.role, one.number, {}))
                    continue
                match = one.search(message)
                if match is not None:
                    groups = {name: value or "" for name, value in match.groupdict().items()}
                    found.append(Match(one.rule, one.role, one.number, groups))
        return found

    def fits(self, rule: Rule, versions: Mapping[str, str]) -> bool:
        """Whether the rule is for these versions; one that is not known fits any."""
        for package, allowed in self._ranges[rule.id]:
            known = versions.get(package)
            if known is None:
                continue
            try:
                if not allowed.contains(Version(known).base_version, prereleases=True):
                    return False
            except InvalidVersion:
                continue
        return True


def _compile(rule: Rule, role: str, number: int, pattern: Pattern) -> _Compiled:
    if pattern.regex is None:
        return _Compiled(rule, role, number, pattern.literal, None)
    try:
        regex = compiled(pattern.regex)
    except ValueError as error:
        raise ValueError(f"{rule.id}: {role}[{number}].regex {error} in {pattern.regex!r}") from None
    return _Compiled(rule, role, number, pattern.literal, regex)


def compiled(regex: str) -> Any:
    """Raises ValueError that says why RE2 does not take it."""
    try:
        return re2.compile(regex, _options())
    except re2.error as error:
        why = error.args[0] if error.args else error
        raise ValueError(
            f"is not RE2: {why.decode('utf-8', 'replace') if isinstance(why, bytes) else why}"
        ) from None


def winners(matches: Sequence[Match]) -> list[Match]:
    """Of the rules that one line is for, those that no other of them says more than. More than one is
    ambiguous."""
    own = [match for match in matches if match.role == "match"]
    first: dict[str, Match] = {}
    for match in own:
        first.setdefault(match.rule.id, match)
    beaten = {less for match in first.values() for less in match.rule.over}
    return [match for rule_id, match in first.items() if rule_id not in beaten]
