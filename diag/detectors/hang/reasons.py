"""Why work, or a loop, does not come to its end, as the program's text shows: the regular expression or the query that is
searched with, the condition that a loop goes round for, and what kind of thing it looks at."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from diag.detectors.hang.conditions import parsed_condition
from diag.detectors.hang.partings import head_of, ways_out
from diag.detectors.hang.verdict import Reason
from diag.model.observations import Block, Frame, Meaning, ProgramPlace, ThreadStack
from diag.state.program import Program
from diag.text.units import format_path

try:
    from re import _parser as sre_parse  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse

_LONGEST = 160  # characters of a value that is quoted
_CALLS = re.compile(r"(?P<name>(?<![\w.])[A-Za-z_][\w.]*|\.\w+) ?\(")
_PATTERNS = ("search", "match", "fullmatch", "sub", "subn", "findall", "split", "finditer")
_COMPILES = re.compile(r"(?:re|regex)\.compile\(")
_RE_FILES = ("/re/__init__.py", "/re.py")
# PEP 249: of a connection or a cursor of whatever database.
_QUERIES = ("execute", "executemany", "executescript", "fetchone", "fetchmany", "fetchall")
# What the interpreter's own types can do in one call is no search without end.
_OF_BUILTINS = frozenset(
    name for kind in (str, bytes, list, dict, set, tuple, int, float, re.Match) for name in dir(kind)
) | {*dir(builtins)}
_UNBOUNDED = 64  # a repetition that may be as long as this may be as long as it likes
# What the functions that a condition calls look at (os, pathlib, glob; subprocess, multiprocessing, psutil; threading,
# queue, concurrent.futures; socket, urllib, requests).
_LOOKED_AT = {
    "polls_for_file": (
        "exists lexists is_file is_dir isfile isdir glob iglob rglob iterdir listdir scandir stat getsize getmtime "
        "access"
    ),
    "polls_for_process": "kill pid_exists is_alive waitpid is_running poll",
    "polls_for_thread": "is_set done empty full qsize ready locked",
    "polls_for_service": "connect connect_ex create_connection urlopen getresponse request ping",
}  # fmt: skip
_LISTS = frozenset(["glob", "iglob", "rglob", "iterdir", "listdir", "scandir"])
_OF_OBJECTS = ("polls_for_process", "polls_for_thread")
_EXCLUSIVE = re.compile(
    r"\bO_EXCL\b|\bopen\([^()]*[\"']x[bt+]*[\"']|\.is_locked\b|\.mkdir\(|\bos\.(?:mkdir|link)\("
)
_COMPARES = re.compile(
    r"while (?P<left>[\w.]+|len\([\w.]+\)) (?P<sign>[<>]=?) (?P<right>[\w.]+|len\([\w.]+\)):"
)
_FILE_THERE = re.compile(r"\b(?:FileExistsError|EEXIST)\b")


# --- one call that does not come back


def search_of(thread: ThreadStack | None, place: ProgramPlace, cwd: str) -> Reason | None:
    """Of a thread that computes in C at this line: the only call there that may take for ever."""
    if thread is None or not thread.frames:
        return None
    inner = thread.frames[-1]
    at_line = (inner.file, inner.line) == (place.file, place.line)
    calls = [found["name"] for found in _CALLS.finditer(place.text)]
    in_re = inner.file.endswith(_RE_FILES) and inner.function.rpartition(".")[2] in _PATTERNS
    if not (at_line or in_re):
        return None
    unknown = [call for call in calls if call.rpartition(".")[2] not in _OF_BUILTINS]
    queries = [call for call in unknown if "." in call and call.rpartition(".")[2] in _QUERIES]
    if queries and at_line and len(queries) == len(unknown):
        return _query(place, cwd)
    found = [one for call in calls if (one := _pattern(call, place, in_re=in_re)) is not None]
    others = [call for call in unknown if call.rpartition(".")[2] not in (*_PATTERNS, "compile")]
    if len(found) != 1 or others:
        return None
    return _expression(found[0], cwd)


def _pattern(call: str, place: ProgramPlace, *, in_re: bool) -> Meaning | None:
    """What is searched with by this call of the line: `NAME.search(...)`, `re.search(NAME, ...)`, or a literal."""
    owner, _, method = call.rpartition(".")
    if method not in _PATTERNS:
        return None
    if owner in ("re", "regex"):
        if not in_re:
            return None
        argument = place.text.partition(f"{call}(")[2]
        name = re.match(r"[\w.]+(?=[,)])", argument)
        known = place.meaning(name[0]) if name is not None else None
        if known is not None and known.kind != "either":
            return known
        return Meaning("", "value", f"re.compile({argument}", place.file, place.line)
    if not owner and (made := _COMPILES.search(place.text)) is not None:
        return Meaning("", "value", place.text[made.start() :], place.file, place.line)
    known = place.meaning(owner)
    if known is None or known.kind == "either":
        return None
    return known if _COMPILES.match(known.text) else None


def _expression(found: Meaning, cwd: str) -> Reason:
    pattern = literal(found.text)
    name = f" {found.name}" if found.name else ""
    quoted = f" `{_cut(pattern)}`" if pattern else ""
    where = f"{format_path(found.file, cwd)}:{found.line}"
    nested = nested_repetition(pattern) if pattern else False
    words = f"its time goes into the regular expression{name}{quoted} ({where})"
    if nested:
        words += ", which repeats what is itself repeated, and so backtracks"
    repetition = (
        "it repeats a group that itself repeats something, `(a+)+`: keep one of the two"
        if nested
        else "no repetition inside of a repetition, no two neighbours that can match the same text"
    )
    return Reason("regular_expression", words, {"repetition": repetition})


def literal(text: str) -> str:
    """Of `re.compile(r"...", flags)`; empty where it is no literal, or was cut off."""
    call = text[: _closing(text)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in a pattern that is not raw
            tree = ast.parse(call.strip(), mode="eval").body
            found = ast.literal_eval(tree.args[0]) if isinstance(tree, ast.Call) and tree.args else ""
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ""
    return found.decode("latin-1") if isinstance(found, bytes) else found if isinstance(found, str) else ""


def _closing(text: str) -> int:
    """Behind the bracket that closes the first one outside of quotes; the end where there is none."""
    depth, quote, at = 0, "", 0
    while at < len(text):
        if quote:
            if text[at] == "\\":
                at += 1
            elif text.startswith(quote, at):
                at += len(quote) - 1
                quote = ""
        elif text[at] in "\"'":
            quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
            at += len(quote) - 1
        elif text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(text)


def nested_repetition(pattern: str) -> bool:
    r"""Whether something that may be repeated for ever is itself repeated for ever.

    >>> [nested_repetition(each) for each in (r"(\w+[ ,]*)+$", r"(?:[\w']+\s?)+\.", r"\w+@\w+", r"(?:ab){2,3}c*", "(")]
    [True, True, False, False, False]
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = sre_parse.parse(pattern)
    except (re.error, ValueError, OverflowError, RecursionError):
        return False
    return _repeats(parsed, inside=False)


def _repeats(parsed: Any, *, inside: bool) -> bool:
    for word, value in parsed:
        kind = str(word)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            endless = value[1] >= _UNBOUNDED
            if endless and inside:
                return True
            if _repeats(value[2], inside=inside or endless):
                return True
        elif kind == "SUBPATTERN":
            if _repeats(value[-1], inside=inside):
                return True
        elif kind == "BRANCH" and any(_repeats(one, inside=inside) for one in value[1]):
            return True
    return False


def _query(place: ProgramPlace, cwd: str) -> Reason:
    text = " ".join((place.text, *(one.text for one in place.names)))
    query = next((one for one in place.names if _is_query(one.text) and one.name in place.text), None)
    words = "its time goes into a query of a database"
    if query is not None:
        words += f": {query.name} ({format_path(query.file, cwd)}:{query.line}) is `{_cut(query.text.strip(chr(34) + ' '))}`"
    recursive = re.search(r"\bwith\s+recursive\b", text, re.IGNORECASE)
    endless = recursive and re.search(r"\bunion\s+all\b", text, re.IGNORECASE)
    if endless:
        advice = (
            "a recursive query with UNION ALL never ends where its rows form a circle: write UNION, or carry a depth "
            "and stop at one, and look for the circle in the data that this rank has"
        )
    elif recursive:
        advice = "a recursive query ends only where a round adds no row: carry a depth and stop at one"
    else:
        advice = "see its plan (EXPLAIN): a join without a condition, or a whole table read for each row?"
    return Reason("database_query", words, {"query": advice})


def _is_query(text: str) -> bool:
    return re.match(r"[rbf]*[\"'\s(]*(?:with|select|insert|update|delete)\b", text, re.IGNORECASE) is not None


# --- a loop that goes round


def loop_at(frames: Sequence[Frame], program: Program) -> tuple[ProgramPlace, Block] | None:
    """The nearest one around the innermost of these lines that nothing bounds which it goes over. None where it hands out
    something in each round."""
    loops = (one for one in program.around(frames) if one[1].is_loop)
    found = next((one for one in loops if one[1].yields or not _is_bounded(one[1])), None)
    return None if found is None or found[1].yields else found


def _is_bounded(loop: Block) -> bool:
    return loop.kind == "for" and not _ENDLESS_FOR.search(loop.text)


_ENDLESS_FOR = re.compile(r"\bin (?:itertools\.)?(?:count|cycle|repeat)\(|\bin iter\([^()]*,")


def loop_words(place: ProgramPlace, loop: Block, cwd: str) -> str:
    text = head_of(loop, place.file, cwd) + (ways_out(place, loop, cwd) or _goes_on(place, loop, cwd))
    if loop.deciding and loop.kind == "while" and not _is_true(loop):
        changes = "would change" if _has_failed(place, loop) else "changes"
        text += f", whose condition {changes} by `{loop.deciding[0]}`"
    return text


def _has_failed(place: ProgramPlace, loop: Block) -> bool:
    """What is to change its condition is among what was tried when an exception was caught, at whose handler this line is."""
    return not {*loop.deciding}.isdisjoint(_tried(place, loop))


def _goes_on(place: ProgramPlace, loop: Block, cwd: str) -> str:
    """Of a loop without another way out: what sends it round again."""
    again = [leave.under for leave in place.leaves if leave.word == "continue" and leave.loop == loop.line]
    return f" ({head_of(again[0], place.file, cwd)} sends it round again)" if again else ""


def _is_true(loop: Block) -> bool:
    return re.match(r"while (?:True|1):", loop.text) is not None


def goes_round(place: ProgramPlace, loop: Block, cwd: str) -> Reason:
    return Reason("loops", f"it goes round in the loop {loop_words(place, loop, cwd)}")


def is_common(loop: Block, place: ProgramPlace, others: Sequence[Sequence[Frame]], program: Program) -> bool:
    """Whether other ranks are in that loop too: then it is the work itself."""
    return any(
        there is not None
        and there.file == place.file
        and any(block.line == loop.line for block in there.inside)
        for frames in others
        for there in map(program.at, frames)
    )


def polls(place: ProgramPlace, loop: Block, cwd: str) -> Reason:
    """Of a thread that sleeps in it. What it looks at follows from the functions that its condition calls, or by that of a
    way out; of a loop that only tries, by what it tries."""
    words = f"it sleeps again and again in the loop {loop_words(place, loop, cwd)}"
    looked = [loop.text, *_conditions(place, loop)]
    tried = [*(loop.deciding if _is_true(loop) else ()), *_handled(place, loop)]
    shown = _meanings(place, looked, cwd)
    if shown:
        words += f", where {shown}"
    if any(map(_EXCLUSIVE.search, looked + tried)) or any(map(_FILE_THERE.search, tried)):
        return Reason("polls_for_lock_file", words)
    kinds = _looks_at(_with_values(place, looked)) or _looks_at(tried)
    if kinds == {"polls_for_file"} and _until_gone(place, loop):
        return Reason("polls_for_lock_file", words)
    if not kinds and _gets_on(loop) and not _has_failed(place, loop):
        return Reason("gets_on_slowly", words)
    if kinds == {"polls_for_file"} and counts_files(loop):
        return Reason("polls_for_number_of_files", words)
    return Reason(kinds.pop() if len(kinds) == 1 else "polls", words)


def counts_files(loop: Block) -> bool:
    """Of a `while` that compares the number of what it finds: `while len(list(out.glob("done.*"))) != world:`."""
    condition = parsed_condition(loop.text)
    compared = [one for one in ast.walk(condition) if isinstance(one, ast.Compare)] if condition else []
    counted = [
        side
        for one in compared
        for side in (one.left, *one.comparators)
        if isinstance(side, ast.Call) and isinstance(side.func, ast.Name) and side.func.id in ("len", "sum")
    ]
    return any(
        isinstance(inner, ast.Call) and ast.unparse(inner.func).rpartition(".")[2] in _LISTS
        for side in counted
        for inner in ast.walk(side)
    )


def _gets_on(loop: Block) -> bool:
    """It compares two numbers, and in every round that it comes through counts one of them towards the other."""
    compared = _COMPARES.fullmatch(loop.text)
    if compared is None or not loop.deciding or loop.met or loop.unmet:
        return False
    low, high = compared["left"], compared["right"]
    if compared["sign"].startswith(">"):
        low, high = high, low
    return all(one.startswith((f"{low} += ", f"{high} -= ")) for one in loop.deciding)


def _looks_at(texts: Sequence[str]) -> set[str]:
    """A function without an owner may be the program's own, of any meaning, but for what is mostly imported so."""
    calls = {found["name"] for text in texts for found in _CALLS.finditer(text)}
    owned = {call.rpartition(".")[2] for call in calls if "." in call}
    return {
        kind
        for kind, known in _LOOKED_AT.items()
        if (owned if kind in _OF_OBJECTS else owned | calls) & {*known.split()}
    }


def _until_gone(place: ProgramPlace, loop: Block) -> bool:
    """`while path.exists():`, or `if not path.exists(): break`."""
    if not _is_true(loop):
        return re.match(r"while \(?not\b", loop.text) is None and not re.search(r"[<>=]", loop.text)
    conditions = [text for text in _conditions(place, loop) if _looks_at([text])]
    return bool(conditions) and all(re.match(r"(?:el)?if \(?not\b", text) for text in conditions)


def _conditions(place: ProgramPlace, loop: Block) -> list[str]:
    return [
        leave.under.text
        for leave in place.leaves
        if loop.line < leave.line <= loop.last and leave.word != "continue"
    ]


def _handled(place: ProgramPlace, loop: Block) -> Iterator[str]:
    for block in _handlers(place, loop):
        yield block.text
        yield from block.deciding


def _tried(place: ProgramPlace, loop: Block) -> list[str]:
    return [text for block in _handlers(place, loop) for text in block.deciding]


def _handlers(place: ProgramPlace, loop: Block) -> list[Block]:
    return [
        block for block in place.around if block.kind == "except" and loop.line <= block.line <= loop.last
    ]


def _with_values(place: ProgramPlace, texts: Sequence[str]) -> list[str]:
    """Also what functions of the program return that these call: `while not ready():`."""
    return [
        *texts,
        *(one.text for one in place.names if one.kind == "function" and _is_in(one.name, texts)),
    ]


def _is_in(name: str, texts: Sequence[str]) -> bool:
    return any(re.search(rf"(?<![\w.]){re.escape(name)}\b", text) for text in texts)


def _meanings(place: ProgramPlace, texts: Sequence[str], cwd: str) -> str:
    """What the names in a condition stand for, and those in their values: where a path comes from."""
    known = [one for one in place.names if _is_in(one.name, texts)]
    within = [
        one for one in place.names if one not in known and _is_in(one.name, [two.text for two in known])
    ]
    shown = []
    for one in (*known, *within):
        says = "returns" if one.kind == "function" else "is"
        shown.append(f"{one.name} {says} `{_cut(one.text)}` ({format_path(one.file, cwd)}:{one.line})")
    return " and ".join(shown[:2])


def lock_of(thread: ThreadStack, place: ProgramPlace, cwd: str) -> Reason | None:
    """Of the package filelock: which of its locks the line takes. A soft one is a file that is there, or not."""
    if "filelock/" not in thread.frames[-1].file:
        return None
    shown = _meanings(place, [place.text], cwd)
    words = f"its line is `{place.text}`" + (f", where {shown}" if shown else "")
    return Reason("polls_for_lock_file" if "SoftFileLock" in words else "file_lock_not_free", words)


def called_by(place: ProgramPlace, cwd: str) -> str:
    """What those stand for that the line calls: the client or channel that was made elsewhere."""
    calls = [found["name"] for found in _CALLS.finditer(place.text)]
    return _meanings(
        replace(place, names=tuple(one for one in place.names if one.kind == "value")), calls, cwd
    )


def tries_again(block: Block) -> Reason:
    """Of a thread that sleeps in a handler: what it tried."""
    there = _FILE_THERE.search(block.text) or any(map(_EXCLUSIVE.search, block.deciding))
    return Reason("polls_for_lock_file" if there else "retries")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4].rstrip() + " ..."
