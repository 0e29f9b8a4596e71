"""What a loop counts that waits for a number of files: those that were there when the folder was read, and which of them are
older than any rank that runs."""

from __future__ import annotations

import ast
import fnmatch
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from diag.detectors.hang.conditions import compares_exactly, parsed_condition
from diag.detectors.hang.partings import path_of
from diag.detectors.hang.verdict import Note, Verdict
from diag.model import numbered
from diag.model.observations import Folder, VariablesRead
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_seconds

_STARTS_SECONDS = 5.0  # a rank is found so long after its start
_MOST_SHOWN = 6
# `out.glob("done.*")`, `glob.glob("out/done.*")`, `os.listdir(out)`: of one folder, and by a pattern of its names
_GLOB = re.compile(r"(?P<of>[A-Za-z_][\w.]*)\.glob\([\"'](?P<pattern>[^\"'/]+)[\"']\)")
_PATTERN = re.compile(r"\bi?glob\([\"'](?P<folder>[^\"'*?\[{]*)/(?P<pattern>[^\"'/{]+)[\"']\)")
_LISTED = re.compile(
    r"\b(?:listdir|scandir)\((?P<of>[A-Za-z_][\w.]*)\)|(?P<owner>[A-Za-z_][\w.]*)\.iterdir\(\)"
)
ADVICE = (
    "More are there than the loop asks for, and some were there before any rank that runs now: see that nobody else needs "
    "these, then remove them."
)


def with_counted_files(verdict: Verdict, job: JobView) -> Verdict:
    """By the variables of the first culprit; where nobody is to blame, of the first rank."""
    everybody = verdict.everyone
    counts = verdict.cause == "polls_for_number_of_files"
    rank = job.ranks.get(everybody[0]) if everybody and counts else None
    read = job.program.variables(rank.rank, rank.placement.pid) if rank is not None else None
    if rank is None or read is None or not read.folders:
        return verdict
    head = next((one.text for _, one in job.program.around(path_of(rank.judged)) if one.kind == "while"), "")
    asked = _asked(head, rank, read)
    folder = _folder(asked[0], read.folders, job.run.cwd) if asked is not None else None
    if asked is None or folder is None:
        return verdict
    found = [one for one in folder.names if fnmatch.fnmatchcase(one[0], asked[1])]
    began = min((one.found_at for one in job.alive_ranks()), default=0.0) - _STARTS_SECONDS
    old = [one for one in found if read.time and read.time - one[1] < began]
    text = _words(asked, found, old)
    words = ", and ".join(filter(None, (verdict.words, text)))
    described = replace(verdict, words=words).noted(Note("variables", text, rank.rank))
    too_many = compares_exactly(head) and len(found) > _wanted(head, _values(rank, read), len(found))
    return replace(described, origin=ADVICE) if old and too_many else described


def _wanted(head: str, values: Mapping[str, str], otherwise: int) -> int:
    """The number that the loop compares with."""
    condition = parsed_condition(head)
    inner = condition.operand if isinstance(condition, ast.UnaryOp) else condition
    sides = (inner.left, *inner.comparators) if isinstance(inner, ast.Compare) else ()
    texts = [ast.unparse(side) for side in sides]
    numbers = [found for text in texts if (found := values.get(text, text)).isdecimal()]
    return int(numbers[0]) if len(numbers) == 1 else otherwise


def _asked(head: str, rank: RankView, read: VariablesRead) -> tuple[str, str] | None:
    """The folder, as it is named, and the pattern."""
    if (literal := _PATTERN.search(head)) is not None:
        return literal["folder"], literal["pattern"]
    found = _GLOB.search(head)
    name, pattern = (found["of"], found["pattern"]) if found is not None else ("", "*")
    if found is None and (listed := _LISTED.search(head)) is not None:
        name = listed["of"] or listed["owner"]
    path = re.fullmatch(r"(?:\w*Path\()?[\"']([^\"']+)[\"']\)?", _values(rank, read).get(name, ""))
    return (path[1], pattern) if path is not None else None


def _values(rank: RankView, read: VariablesRead) -> dict[str, str]:
    """Of the program's innermost function."""
    inner = [(frame.file, frame.function) for frame in path_of(rank.judged)[-1:]]
    return {
        variable.name: variable.text
        for frame in read.frames
        if not frame.called and (frame.file, frame.function) in inner
        for variable in frame.variables
    }


def _folder(name: str, folders: Sequence[Folder], cwd: str) -> Folder | None:
    whole = posixpath.normpath(posixpath.join(cwd, name))
    return next((one for one in folders if posixpath.normpath(one.path) in (whole, name)), None)


def _words(
    asked: tuple[str, str], found: Sequence[tuple[str, float]], old: Sequence[tuple[str, float]]
) -> str:
    """ "out/done.* was 4 files when read (done.0, done.1, done.2, done.3), of which done.2, done.3 are older than any rank that
    runs now"."""
    count = numbered(f"{len(found)} [file|files]", len(found))
    text = f"{posixpath.join(*asked)} was {count} when read"
    if found:
        ages = sorted(age for _, age in found)
        between = f"{format_seconds(ages[0])} to {format_seconds(ages[-1])} old"
        text += f" ({_names(found)}; {between if len(found) > 1 else f'{format_seconds(ages[0])} old'})"
    if old:
        verb = numbered("[is|are]", len(old))
        text += f", of which {_names(old)} {verb} older than any rank that runs now"
    return text


def _names(found: Sequence[tuple[str, float]]) -> str:
    shown = [name for name, _ in found[:_MOST_SHOWN]]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
