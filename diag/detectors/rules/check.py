"""`diag rules test`: each rule against its own lines and against all others', and whether its patterns are
quick."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from diag.detectors.rules.load import Loaded, Problem
from diag.detectors.rules.reader import LogReader
from diag.detectors.rules.ruleset import RuleSet, compiled, winners
from diag.detectors.rules.schema import Pattern, Rule
from diag.knowledge.log_prefix import message_of, strip_outer
from diag.text.units import format_seconds

_PLACE = re.compile(r"\{(\w{1,40})\}")
# A literal that occurs in ordinary lines is no prefilter. Of ms-swift 4.6, Megatron-LM, transformers,
# torchrun, NCCL, tqdm.
_ORDINARY = (
    "{'loss': 0.69314718, 'grad_norm': 1.10422194, 'learning_rate': 9.847e-05, 'iteration': '4/100', 'elapsed_time': '2s'}",
    "[INFO:swift] The training of Epoch 0 starts...",
    "[INFO:swift] Successfully saved Megatron model weights in `/out/checkpoint-4`.",
    " [2026-11-21 00:17:13] iteration        1/       8 | consumed samples:            8 | elapsed time per iteration (ms): 64",
    "Train:   8%|8         | 1/12 [00:00<00:07,  1.55it/s]",
    "[INFO|trainer.py:2519] 2026-11-20 22:48:19,123 >> ***** Running training *****",
    "Loading checkpoint shards: 100%|##########| 4/4 [00:01<00:00,  3.01it/s]",
    "gpu-17:812:955 [3] NCCL INFO Channel 00/16 : 0 1 2 3 4 5 6 7",
    "[2026-11-20 22:48:19,123] [INFO] [logging.py:107:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.999)]",
    "  warnings.warn(",
    '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl',
    "    return self._call_impl(*args, **kwargs)",
    "Traceback (most recent call last):",
    "RuntimeError: ",
    "ValueError: ",
    "ImportError: ",
)
_SLOW_SECONDS_PER_MB = 0.5  # RE2 takes 2-20 ms for a megabyte of what it can do as an automaton
_TRIES = ("a" * 4096, "x=1, " * 800, " " * 4096, "0123456789" * 400, "[rank1]: RuntimeError: " * 170)
_MOST_PROGRAM = 4000  # instructions of RE2: (.{1,1000}){3} has as many


def check(items: Sequence[Loaded], others: Sequence[Rule] = ()) -> Iterator[Problem]:
    """Everything that is wrong with these rules, one after another. `others`: rules that are loaded beside
    them."""
    paths: dict[str, Path] = {}
    good: list[Loaded] = []
    for item in items:
        twin = paths.setdefault(item.rule.id, item.path)
        if twin != item.path:
            yield Problem(item.path, item.line("id"), f"id: {item.rule.id} is the id of {twin} too")
            continue
        problems = [*_form(item), *_patterns(item)]
        yield from problems
        if not any("is not RE2" in problem.text for problem in problems):
            good.append(item)
    everything = RuleSet([*(item.rule for item in good), *(rule for rule in others if rule.id not in paths)])
    for item in good:
        yield from _references(item, everything)
        yield from _examples(item, everything)
        yield from _silent(item, everything)


def _form(item: Loaded) -> Iterator[Problem]:
    rule = item.rule
    if item.path.stem != rule.id:
        yield Problem(
            item.path, item.line("id"), f"id: the file of rule {rule.id} is to be called {rule.id}.yaml"
        )
    names = {"who"} | (
        set.intersection(*(_groups(pattern) for pattern in rule.match)) if rule.match else set()
    )
    for part in ("summary", "advice"):
        for text, keys in ((getattr(rule, part), (part,)), (getattr(rule.zh, part), ("zh", part))):
            for name in _PLACE.findall(text):
                if name not in names:
                    problem = f"{'.'.join(keys)}: {{{name}}} is a group of no regex, or not of all; known are"
                    yield Problem(item.path, item.line(*keys), f"{problem} {', '.join(sorted(names))}")


def _groups(pattern: Pattern) -> set[str]:
    return set(re.findall(r"\(\?P<(\w+)>", pattern.regex or ""))


def _patterns(item: Loaded) -> Iterator[Problem]:
    rule = item.rule
    for part, patterns in (("match", rule.match), ("also", rule.also), ("unless", rule.unless)):
        for number, pattern in enumerate(patterns):
            line = next((line for line in _ORDINARY if pattern.literal in line), None)
            if line is not None and part == "match":
                slow = f"slow: {pattern.literal!r} occurs in ordinary lines ({line[:60]!r}); use a longer or rarer text"
                yield Problem(
                    item.path, item.line(part, number, "literal"), f"{part}[{number}].literal: {slow}"
                )
            if pattern.regex is not None:
                yield from _regex(item, part, number, pattern.regex)


def _regex(item: Loaded, part: str, number: int, text: str) -> Iterator[Problem]:
    where = item.line(part, number, "regex")
    try:
        regex = compiled(text)
    except ValueError as error:
        yield Problem(item.path, where, f"{part}[{number}].regex: {error}")
        return
    size = regex._regexp.ProgramSize()
    if size > _MOST_PROGRAM:
        slow = f"slow: {size} instructions, at most {_MOST_PROGRAM}; use smaller repetitions"
        yield Problem(item.path, where, f"{part}[{number}].regex: {slow}")
        return
    for line in _TRIES:
        began = time.perf_counter()
        regex.search(line)
        seconds = time.perf_counter() - began
        if seconds > _SLOW_SECONDS_PER_MB and regex.search(line) is None:  # not for one hiccup of the machine
            slow = f"slow: {format_seconds(seconds)} for a line of {len(line)} characters"
            yield Problem(item.path, where, f"{part}[{number}].regex: {slow}")


def _references(item: Loaded, rules: RuleSet) -> Iterator[Problem]:
    for number, rule_id in enumerate(item.rule.over):
        if rule_id not in rules.by_id:
            yield Problem(item.path, item.line("over", number), f"over[{number}]: there is no rule {rule_id}")


def _examples(item: Loaded, rules: RuleSet) -> Iterator[Problem]:
    """Each example must be named by this rule, its line by no other that says something else."""
    rule = item.rule
    used: set[int] = set()
    for number, example in enumerate(rule.examples):
        where = item.line("examples", number)
        reader = _read(rules, example.text)
        standing = {hit.rule.id for hit in reader.standing()}
        best = [match.rule.id for matches in _matches(rules, example.text) for match in winners(matches)]
        if rule.id not in (best if rule.role == "benign" else standing):
            why = _why_not(rule, rules, example.text, reader)
            yield Problem(item.path, where, f"examples[{number}]: the rule does not name it: {why}")
        for matches in _matches(rules, example.text):
            used |= {match.number for match in matches if match.rule.id == rule.id and match.role == "match"}
            first = winners(matches)
            rivals = [match.rule for match in first if match.rule.id != rule.id]
            if len(rivals) < len(first) and not _same(rule, *rivals):
                names = ", ".join(rival.id for rival in rivals)
                ambiguous = (
                    f"ambiguous: {names} matches the same line; use over: to say which is more specific"
                )
                yield Problem(item.path, where, f"examples[{number}]: {ambiguous}")
    for number in set(range(len(rule.match))) - used:
        untested = f"match[{number}]: untested: this pattern matches no example"
        yield Problem(item.path, item.line("match", number), untested)


def _silent(item: Loaded, rules: RuleSet) -> Iterator[Problem]:
    for number, silent in enumerate(item.rule.silent):
        reader = _read(rules, silent.text)
        if any(hit.rule.id == item.rule.id for hit in reader.standing()):
            yield Problem(
                item.path, item.line("silent", number), f"silent[{number}]: the rule names it, and must not"
            )


def _same(*rules: Rule) -> bool:
    return len({(rule.finding, rule.cause, rule.role) for rule in rules}) == 1


def _read(rules: RuleSet, text: str) -> LogReader:
    reader = LogReader(rules)
    for rank, line in lines_of(text):
        reader.read(0.0, rank, line)
    return reader


def lines_of(text: str) -> Iterator[tuple[int | None, str]]:
    """Lines of an example as the log's reader gets them: without outer prefixes, with the rank that they
    tell."""
    for line in text.splitlines():
        bare = strip_outer(line).text
        yield message_of(bare).rank, bare


def _matches(rules: RuleSet, text: str) -> Iterator[list]:  # type: ignore[type-arg]
    for _, line in lines_of(text):
        yield rules.find(rules.candidates(line), message_of(line).text)


def _why_not(rule: Rule, rules: RuleSet, text: str, reader: LogReader) -> str:
    lines = [line for _, line in lines_of(text)]
    literals = [pattern.literal for pattern in rule.match]
    if not any(literal in line for literal in literals for line in lines):
        return f"no line has {' or '.join(map(repr, literals))}"
    own = [
        matches
        for matches in _matches(rules, text)
        if (rule.id, "match") in [(match.rule.id, match.role) for match in matches]
    ]
    if not own:
        return "the literal is there, and no regex is found in the message"
    if not any(m.rule.id == rule.id for matches in own for m in winners(matches)):
        return "another rule says that it is over this one"
    if rule.kind == "exception" and rule.id not in reader.hits:
        return "the line ends no traceback: give the example its frames, or a [rankN]: before it"
    if rule.count > 1 and rule.id not in reader.hits:
        return f"it wants {rule.count} such lines"
    return "what also: wants is missing, or what unless: forbids is there"
