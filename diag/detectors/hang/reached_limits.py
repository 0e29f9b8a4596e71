"""A limit of the kernel that a rank has come to which tries again what has failed: a file as long as it may be, no descriptor
left, no room in a file system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from diag.detectors.hang.partings import path_of
from diag.detectors.hang.verdict import Note, Verdict
from diag.model.observations import Reached, VariablesRead
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_bytes

# Who tries again, or looks again for what does not come.
_TRIES = ("retries", "polls", "polls_for_lock_file", "gets_on_slowly")
_CATCHES = re.compile(
    r"^except(?:[ :]*$|:|.*\b(?:OSError|IOError|EnvironmentError|Exception|BaseException)\b)"
)
_OPENS = re.compile(r"open|socket|connect|accept|pipe|Popen|spawn|fork|mkstemp|TemporaryFile|memfd|eventfd")

_WRITES = re.compile(
    r"write|dump|save|flush|sync|truncate|copy|sendfile|append|print|to_?(?:file|csv|json|parquet)"
)


def with_reached_limit(verdict: Verdict, job: JobView) -> Verdict:
    """Of the first culprit, or where nobody is to blame, of the first rank."""
    everybody = verdict.everyone
    tries = verdict.cause in _TRIES and verdict.blamed_child is None
    rank = job.ranks.get(everybody[0]) if everybody and tries else None
    read = job.program.variables(rank.rank, rank.placement.pid) if rank is not None else None
    if rank is None or read is None or not read.reached:
        return verdict
    tried = list(_tried(rank, job))
    if not tried:
        return verdict
    found = next((one for one in read.reached if _is_of(one, tried, rank, read, job)), None)
    if found is None:
        return verdict
    text = _words(found, job.run.cwd)
    words = ", and ".join(filter(None, (verdict.words, text)))
    noted = verdict.noted(Note("variables", text, rank.rank))
    return replace(noted, words=words, cause="limit_reached", reason=None)


def _tried(rank: RankView, job: JobView) -> Iterator[str]:
    """What raised, where its handler catches errors of the system."""
    for _, block in job.program.around(path_of(rank.judged)):
        if block.kind == "except" and _CATCHES.match(block.text):
            yield from block.deciding


def _is_of(found: Reached, tried: list[str], rank: RankView, read: VariablesRead, job: JobView) -> bool:
    """What is tried is what the limit is of: it opens something, or it writes and names the descriptor or the path."""
    if found.kind == "open_files":
        return any(map(_OPENS.search, tried))
    tried = [text for text in tried if _WRITES.search(text)]
    inner = path_of(rank.judged)[-1]
    path = found.path.removeprefix(f"{job.run.cwd}/") if job.run.cwd else found.path
    for frame in read.frames:
        if frame.called or (frame.file, frame.function) != (inner.file, inner.function):
            continue
        for variable in frame.variables:
            named = any(re.search(rf"(?<![\w.]){re.escape(variable.name)}\b", text) for text in tried)
            is_it = variable.text == str(found.fd) or re.search(
                rf"(?:^|[/'\"]){re.escape(path)}['\"]", variable.text
            )
            if named and is_it:
                return True
    return False


def _words(found: Reached, cwd: str) -> str:
    path = found.path.removeprefix(f"{cwd}/") if cwd else found.path
    if found.kind == "open_files":
        return f"it has {found.value} descriptors open, as many as it may have (RLIMIT_NOFILE): to open one more fails"
    if found.kind == "file_size":
        size = format_bytes(found.value)
        return f"{path} (fd {found.fd}) has {size}, as much as the process may write to a file (RLIMIT_FSIZE): a write there fails"
    return f"the file system of {path} (fd {found.fd}) has no room left for it: a write there fails"
