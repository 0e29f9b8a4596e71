"""Rule files into rules. What is wrong with one is reported with its file and line; the others are used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

import diag
from diag.detectors.rules.ruleset import RuleSet
from diag.detectors.rules.schema import Rule
from diag.text.compiled import RULES, compiled, rule_sources
from diag.text.errors import DiagError

# libyaml's where PyYAML was built with it: ten times as quick
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LARGEST_FILE = 1 << 20
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Problem:
    """Of a rule file. `line` counts from 1."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rule, its file, and where its parts are in it."""

    rule: Rule
    path: Path
    _root: yaml.Node

    def line(self, *keys: str | int) -> int:
        """Of the part that these keys lead to (`"match", 0, "regex"`), or of the nearest that is there."""
        return line_of(self._root, keys)


def line_of(root: yaml.Node, keys: Sequence[str | int]) -> int:
    node, line = root, root.start_mark.line + 1
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            pair = next(((name, value) for name, value in node.value if name.value == str(key)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            break
    return int(line)


def packaged_folder() -> Path:
    """rules/signatures of the checkout, or of the installed package."""
    package = Path(diag.__file__).parent
    inside = package / "_data" / "rules"
    return (inside if inside.is_dir() else package.parent / "rules") / "signatures"


def files_of(path: Path) -> list[Path]:
    """Rule files below a folder, or the one that is given. Raises DiagError where there is none."""
    if path.is_dir():
        # A ConfigMap's folder shows each file twice: by its name, and below ..data and a folder with a date.
        found = sorted(
            item
            for item in path.rglob("*")
            if item.suffix in (".yaml", ".yml")
            and item.is_file()
            and not any(part.startswith(".") for part in item.relative_to(path).parts)
        )
        if not found:
            raise DiagError(f"{path} holds no rules: no file that ends in .yaml", exit_code=2)
        return found
    if not path.exists():
        raise DiagError(f"{path} does not exist", hint="give a rule file or a folder of them", exit_code=2)
    return [path]


def read_rules(paths: Iterable[Path], *, own: bool = False) -> Iterator[Loaded | Problem]:
    """Each file is one rule. Files or folders; `own` ones come with diag."""
    for path in paths:
        for file in files_of(path):
            yield from _read(file, own)


def _read(path: Path, own: bool) -> Iterator[Loaded | Problem]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            yield Problem(path, 1, f"not a rule: larger than {_LARGEST_FILE} characters")
            return
        if not own:  # a fifth of diag's start
            _refuse_depth(text)
        loader = _Loader(text)
        root: Any = loader.get_single_node()
        data: Any = loader.construct_document(root) if root is not None else None
    except (OSError, UnicodeDecodeError) as error:
        yield Problem(path, 1, f"cannot be read: {error}")
        return
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        yield Problem(path, line, f"not valid YAML: {getattr(error, 'problem', None) or error}")
        return
    except (ValueError, OverflowError) as error:  # a day that no month has, a number of thousands of digits
        yield Problem(path, 1, f"not valid YAML: {error}")
        return
    if not isinstance(data, dict):
        yield Problem(path, 1, "not a rule: a file holds one mapping, with apiVersion: diag/v1")
        return
    try:
        rule = Rule.model_validate(data)
    except ValidationError as error:
        for item in error.errors():
            where = ".".join(str(part) for part in item["loc"]) or "the rule"
            line = line_of(root, [part for part in item["loc"] if part != "Rule"])
            yield Problem(path, line, f"{where}: {item['msg']}")
        return
    yield Loaded(rule, path, root)


def _refuse_depth(text: str) -> None:
    """A rule is six deep. PyYAML goes down by recursion, and with libyaml a file of brackets ends the process
    by SIGSEGV."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem=f"more than {_DEEPEST} levels deep", problem_mark=mark)


def load(folders: Sequence[Path]) -> RuleSet:
    """The packaged rules and those of the folders, which replace packaged ones of the same id.

    Raises DiagError that names file and line of the first rule that cannot be used: a rule that is silently
    missing costs more.
    """
    if not folders:
        return packaged()
    rules = {rule.id: rule for rule in packaged().rules}
    for item in read_rules(folders):
        if isinstance(item, Problem):
            raise DiagError(
                f"a rule cannot be used: {item}",
                hint="`diag rules test DIR` lists every problem",
                exit_code=2,
            )
        rules[item.rule.id] = item.rule
    try:
        return RuleSet(tuple(rules.values()))
    except ValueError as error:
        raise DiagError(
            f"a rule cannot be used: {error}", hint="`diag rules test DIR` shows where", exit_code=2
        ) from None


def for_a_run(folder: Path | None, talk: Callable[[str], None]) -> RuleSet:
    """As `load`; the job comes first: rules that cannot be used are reported, and diag watches with its own."""
    try:
        return load([folder] if folder is not None else [])
    except DiagError as error:
        talk(f"{error}; the rules of {folder} are not used")
        return packaged()


@lru_cache(maxsize=1)
def packaged() -> RuleSet:
    """Those that come with diag; a damaged one is left out (`diag rules test` tells), and never keeps diag
    from starting."""
    folder = packaged_folder()
    if not folder.is_dir():
        return RuleSet(())
    copies = compiled(RULES, rule_sources(folder))
    if copies:
        with contextlib.suppress(ValidationError):
            return RuleSet([Rule.model_validate(data) for data in copies], checked=True)
    found = read_rules([folder], own=True)
    return RuleSet([item.rule for item in found if isinstance(item, Loaded)], checked=True)
