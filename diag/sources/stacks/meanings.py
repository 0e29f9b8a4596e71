"""What names in a program's text mean: the value that one statement assigns to them, or what their function returns;
and the statement that made what a line waits for: `request = dist.isend(...)` of `request.wait()`.

Names of a function, of its module, of `self`, and those that a module beside it defines and that are imported from it.
Where two statements assign to a name of a module, none is taken: which one was the last is not known.
"""

from __future__ import annotations

import ast
import posixpath
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

from diag.model.observations import Meaning
from diag.sources.stacks.statements import FUNCTIONS, Line, end_of, heads_of, shown

MOST_MEANINGS = 8
_LONGEST = 400  # characters of a value: a query, a regular expression
_FROM = re.compile(r"from (?P<dots>\.*) ?(?P<module>[\w.]*) ?import \(?(?P<names>[\w ,]+)\)?")
_IMPORT = re.compile(r"import (?P<modules>[\w. ,]+)")
_NAME = re.compile(r"(?<![\w.\"'])[A-Za-z_][\w.]*(?![\w.\"'])")
_EITHER = 2  # values by two ways
_SHORT = 70  # characters of each of them
_BRANCHES = ("if", "elif", "else", "except", "case")
_ABOVE = 3  # folders above a file in which the modules that it imports may begin
_AWAITED = re.compile(r"([A-Za-z_][\w.]*)(?:\[[^\[\]]*\])?\.wait\(")
_MOST_NAMES = 4  # one taken from another, as in `for one in requests`

Module = Callable[[str], Sequence[Line]]


class Meanings:
    """`module`: the lines of another file of the program; none where there is no such file, or it may not be read."""

    def __init__(self, path: str, lines: Sequence[Line], module: Module) -> None:
        self._path, self._lines, self._module = path, lines, module

    def of(self, names: Iterable[str], at: int) -> list[Meaning]:
        """Of names that the line with this number in `lines` reads, or what is around it; then of those that are in the
        values of these."""
        found = self._found({}, names, at)
        values = [one.text for one in found.values() if one.kind == "value" and one.file == self._path]
        within = dict.fromkeys(name for text in values for name in _NAME.findall(text))
        return [*self._found(found, within, at).values()]

    def given(self, name: str, at: int) -> str:
        """What the only line of the file that calls the function around this line gives for this parameter; empty where
        several do, or none."""
        heads = [head for head in heads_of(self._lines, at) if self._lines[head].word == "def"]
        head = parsed_call(f"{self._lines[heads[-1]].text} pass", ast.FunctionDef) if heads else None
        if not isinstance(head, ast.FunctionDef):
            return ""
        called = re.compile(rf"(?<![\w.])(?:self\.|cls\.)?{re.escape(head.name)}\(")
        lines = [
            number
            for number, one in enumerate(self._lines)
            if f"{head.name}(" in one.text and one.word not in FUNCTIONS and called.search(one.text)
        ]
        call = parsed_call(self._lines[lines[0]].text, ast.Call, head.name) if len(lines) == 1 else None
        if not isinstance(call, ast.Call):
            return ""
        parameters = [one.arg for one in (*head.args.posonlyargs, *head.args.args)]
        if parameters[:1] in (["self"], ["cls"]) and isinstance(call.func, ast.Attribute):
            parameters = parameters[1:]
        of_place = dict(zip(parameters, call.args, strict=False))
        of_name = {one.arg: one.value for one in call.keywords}
        node = of_name.get(name) or of_place.get(name)
        text = ast.unparse(node) if node is not None and not isinstance(node, ast.Starred) else ""
        meaning = (
            next((one for one in self.of((text,), lines[0]) if one.name == text), None) if text else None
        )
        return meaning.text if meaning is not None and meaning.kind == "value" else text

    def modules(self) -> dict[str, Sequence[Line]]:
        """The lines of modules of the program that are imported, by their files."""
        found: dict[str, Sequence[Line]] = {}
        for one in self._lines:
            if one.word == "from" and (match := _FROM.fullmatch(one.text)):
                names = [(match["module"], len(match["dots"]))]
                if not match["module"]:  # from . import checkpoint
                    names = [(name, len(match["dots"])) for name in _imported_names(match["names"])]
            elif one.word == "import" and (match := _IMPORT.fullmatch(one.text)):
                names = [(name, 0) for name in _imported_names(match["modules"])]
            else:
                continue
            for path in (path for name, dots in names for path in self._files_of(name, dots)):
                if lines := self._module(path):
                    found[path] = lines
        return found

    def _found(self, found: dict[str, Meaning], names: Iterable[str], at: int) -> dict[str, Meaning]:
        for asked in names:
            name = asked
            while name and name not in ("self", "cls") and len(found) < MOST_MEANINGS:
                meaning = found.get(name) or self._one(name, at)
                if meaning is not None:
                    found[name] = meaning
                    break
                name = name.rpartition(".")[0]
        return found

    def _one(self, name: str, at: int) -> Meaning | None:
        if name.startswith("."):
            return None
        first, dot, _ = name.partition(".")
        if first in ("self", "cls") and dot:
            found = _the_only(_assigned(self._lines, name), name, self._path, self._lines)
            return found or _function(self._lines, name.rpartition(".")[2], name, self._path)
        if not dot:
            own, found = self._local(name, at)
            if own:
                return found
        return self._of_module(self._lines, self._path, name) or next(self._imported(name), None)

    def _local(self, name: str, at: int) -> tuple[bool, Meaning | None]:
        """Whether it is the function's own, and its meaning where a statement gives it."""
        heads = [head for head in heads_of(self._lines, at) if self._lines[head].word in FUNCTIONS]
        if not heads or self._lines[heads[-1]].word == "class":
            return False, None
        head = heads[-1]
        inside = range(head + 1, end_of(self._lines, head))
        own = [one for one in inside if self._lines[one].target == name and self._lines[one].changes]
        if own:
            before = [one for one in own if one < at] or own
            filled = self._filled(name, before[-1], range(before[-1] + 1, max(at, before[-1] + 1)))
            return True, filled or self._last_of(before, name, at)
        parameter = re.search(rf"[(,] ?\**{re.escape(name)} ?[,:=)]", self._lines[head].text)
        return parameter is not None, None

    def _last_of(self, before: Sequence[int], name: str, at: int) -> Meaning | None:
        """The last one. Where that is in a branch in which this line is not, either that or the one before; of more nothing is
        said."""
        around = {*heads_of(self._lines, at)}
        found = [before[-1]]
        while len(found) < len(before) and self._is_in_a_branch(found[0], around):
            found.insert(0, before[-1 - len(found)])
        values = [self._lines[one].value for one in found]
        if len(found) != _EITHER or not all(values):
            return _the_only(found, name, self._path, self._lines)
        text = "` or `".join(shown(value, _SHORT) for value in values)
        return Meaning(name, "either", text, self._path, self._lines[found[0]].first)

    def _is_in_a_branch(self, at: int, around: set[int]) -> bool:
        inner = [head for head in heads_of(self._lines, at) if head not in around]
        return any(self._lines[head].word in _BRANCHES for head in inner)

    def _filled(self, name: str, begun: int, between: Iterable[int]) -> Meaning | None:
        """Of a list that is empty where it begins: the loop that appends to it in each of its rounds."""
        if self._lines[begun].value not in ("[]", "list()", "deque()", "collections.deque()"):
            return None
        fills = [at for at in between if self._lines[at].target == f"{name}.append"]
        heads = [*heads_of(self._lines, fills[0])] if len(fills) == 1 else []
        if not heads or self._lines[heads[0]].word != "for" or heads[0] <= begun:
            return None
        loop = self._lines[heads[0]]
        return Meaning(name, "filled", shown(loop.text), self._path, loop.first)

    def _of_module(self, lines: Sequence[Line], path: str, name: str, called: str = "") -> Meaning | None:
        own = [at for at in _assigned(lines, name) if lines[at].depth == 0]
        found = _the_only(own, called or name, path, lines)
        return found or (
            None if own or "." in name else _function(lines, name, called or name, path, depth=0)
        )

    def _imported(self, name: str) -> Iterator[Meaning]:
        first, _, rest = name.partition(".")
        for one in self._lines:
            if one.word == "from" and (found := _FROM.fullmatch(one.text)):
                if (original := _original(found["names"], first)) is None:
                    continue
                module = ".".join(filter(None, (found["module"], original if rest else "")))
                wanted, dots = rest or original, len(found["dots"])
            elif one.word == "import" and rest and (found := _IMPORT.fullmatch(one.text)):
                if (original := _original(found["modules"], first)) is None:
                    continue
                module, wanted, dots = original, rest, 0
            else:
                continue
            for path in self._files_of(module, dots):
                if (meaning := self._of_module(self._module(path), path, wanted, name)) is not None:
                    yield meaning

    def _files_of(self, module: str, dots: int) -> Iterator[str]:
        folder = posixpath.dirname(self._path)
        if not module or not folder.startswith("/"):
            return
        for _ in range(dots - 1):
            folder = posixpath.dirname(folder)
        for _ in range(1 if dots else _ABOVE):
            yield f"{folder.rstrip('/')}/{module.replace('.', '/')}.py"
            folder = posixpath.dirname(folder)


def parsed_call(text: str, kind: type[ast.AST], name: str = "") -> ast.AST | None:
    """The first node of this kind in a statement; of calls, of a function or method of that name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        func = node.func if isinstance(node, ast.Call) else None
        called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if isinstance(node, kind) and (not name or called == name):
            return node
    return None


def _imported_names(names: str) -> list[str]:
    return [part.partition(" as ")[0].strip() for part in names.split(",")]


def _original(names: str, wanted: str) -> str | None:
    """
    >>> _original("SLUG as S, clean", "S"), _original("re", "re"), _original("os", "re")
    ('SLUG', 're', None)
    """
    for part in names.split(","):
        original, _, alias = (word.strip() for word in part.partition(" as "))
        if (alias or original) == wanted:
            return original
    return None


def _assigned(lines: Sequence[Line], name: str) -> list[int]:
    return [at for at, one in enumerate(lines) if one.target == name and one.changes]


def _the_only(found: Sequence[int], name: str, path: str, lines: Sequence[Line]) -> Meaning | None:
    if len(found) != 1 or not (value := lines[found[0]].value):
        return None
    return Meaning(name, "value", shown(value, _LONGEST), path, lines[found[0]].first)


def _function(
    lines: Sequence[Line], name: str, called: str, path: str, depth: int | None = None
) -> Meaning | None:
    """By what the only function of that name returns, where it has one way to."""
    heads = [
        at
        for at, one in enumerate(lines)
        if one.word == "def" and f"def {name}(" in one.text and depth in (None, one.depth)
    ]
    if len(heads) != 1:
        return None
    block = lines[heads[0] + 1 : end_of(lines, heads[0])]
    returns = [one for one in block if one.text.startswith("return ")]
    if len(returns) != 1 or any(one.word in FUNCTIONS for one in block):
        return None
    text = returns[0].text.removeprefix("return ")
    return Meaning(called, "function", shown(text, _LONGEST), path, returns[0].first)


def made_by(lines: Sequence[Line], heads: Sequence[int], text: str) -> str:
    """The statement that made what this one waits for, followed from name to name."""
    found = _AWAITED.search(text)
    if found is None:
        return ""
    name, first, last = found[1], 0, len(lines)
    if "." not in name and heads and lines[heads[-1]].word in FUNCTIONS:
        first, last = heads[-1] + 1, end_of(lines, heads[-1])
    texts = [text, *(one.text for one in lines[first:last])]
    for _ in range(_MOST_NAMES):
        escaped = re.escape(name)
        taken = re.compile(
            rf"\bfor (?:[\w, ]+, )?{escaped} in (?:\w+\()?([A-Za-z_][\w.]*)\)?(?=[:\])}}]|$| if )"
        )
        given = re.compile(
            rf"(?:^|, ){escaped}(?: ?:[^=]+)?(?:, [\w., ]+)? \+?= (.+)|^{escaped}\.(?:append|extend)\((.+)\)"
        )
        outer = next((match[1] for one in texts if (match := taken.search(one))), None)
        if outer is not None:
            name = outer
            continue
        values = [(one, match) for one in texts if (match := given.search(one))]
        # the last one that is no empty list, which only begins it
        return next(
            (one for one, match in reversed(values) if (match[1] or match[2]) not in ("[]", "None")), ""
        )
    return ""
