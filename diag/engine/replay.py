"""Evidence on disk into an engine: run directories, bundles and plain logs. Untrusted input: read, never run."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from diag.engine.engine import Engine
from diag.engine.importers import bundle
from diag.engine.importers.files import leads_out
from diag.engine.importers.folder import folder_records, holds_evidence
from diag.engine.importers.log_import import read_log, read_logs, read_text
from diag.engine.importers.policy import JOB, RUN, Policy, policy_named
from diag.engine.journal import JournalReader, segments
from diag.launch.past.folders import PAST
from diag.launch.runs import read_run
from diag.model import Change, Record
from diag.model.observations import Parser
from diag.sources.digest import SOURCE as DIGESTS
from diag.sources.host import run as run_source
from diag.sources.parsers import PARSERS
from diag.text.errors import DiagError
from diag.text.progress_line import Progress

if TYPE_CHECKING:
    from diag.detectors.rules.ruleset import RuleSet


def replay(
    paths: list[Path], progress: Progress | None = None, rules: RuleSet | None = None
) -> tuple[Engine, list[Change], list[str]]:
    """Replay everything given as one job. Returns the engine, the changes and notes on what could not be
    used.

    Raises DiagError for a path that is nothing diag can read.
    """
    if rules is None:
        from diag.detectors.rules.load import packaged

        rules = packaged()
    evidence = Evidence(paths, progress, rules.literals)
    engine, changes = replay_records(evidence, rules)
    return engine, changes, evidence.notes


def replay_text(text: str) -> Engine:
    """Pasted lines of a log."""
    return replay_records(read_text(text, []))[0]


def replay_records(records: Iterable[Record], rules: RuleSet | None = None) -> tuple[Engine, list[Change]]:
    """Feed records in the order given, by the policy that they name (`Evidence`, a journal, an import), else that
    of a run. The engine, and all that changed. `rules` in place of those that come with diag."""
    flow = iter(records)
    first = next(flow, None)  # what reads a journal knows its policy with its first record
    engine = _policy(records, first).engine(rules, getattr(records, "parsers", PARSERS))
    changes: list[Change] = []
    for record in () if first is None else chain([first], flow):
        if run_source.is_another_attempt(record):  # nothing before it is a fact of this one
            engine = _policy(records, first).engine(rules, getattr(records, "parsers", PARSERS))
            changes.clear()
        changes += engine.feed(record)
    changes += engine.finish()
    return engine, changes


def _policy(records: Iterable[Record], first: Record | None) -> Policy:
    name = getattr(records, "policy", "")
    if name:
        return policy_named(name)
    # The header of a job hub's journal did not always say so.
    return JOB if first is not None and first.source == DIGESTS else RUN


def when_read_again(path: Path) -> str:
    """Why it cannot be read a second time; empty where it can."""
    if str(path) == "-":
        return "stdin can be read once only"
    return "" if path.is_dir() or path.is_file() else f"{path} can be read once only"


class Evidence:
    """The records of everything given, as one job. `policy` and `parsers` are known with the first record, `notes` on
    what could not be used behind the last. Iterating raises DiagError for what cannot be read, and where there is no
    record at all: that is not a healthy job."""

    def __init__(
        self, paths: list[Path], progress: Progress | None = None, literals: tuple[str, ...] = ()
    ) -> None:
        """`literals`: words of the rules by which it will be judged."""
        self.notes: list[str] = []
        self.policy = ""
        self.parsers: Mapping[str, Parser] = PARSERS
        self._paths = paths
        self._literals = literals
        self._path = paths[0]  # that is being read
        self._progress = progress or Progress(io.StringIO())  # no terminal

    def __iter__(self) -> Iterator[Record]:
        any_record = False
        try:
            for record in self._all():
                any_record = True
                yield record
        except OSError as error:
            name, why = error.filename or self._path, error.strerror or error
            raise DiagError(f"{name} cannot be read: {why}") from None
        if not any_record:
            raise DiagError(
                "; ".join(self.notes) or f"{self._paths[0]} holds nothing that can be read",
                exit_code=2,
                hint="give what the job printed as text, a run directory, a bundle of `diag dump`, or a "
                "folder of evidence",
            )

    def _all(self) -> Iterator[Record]:
        if self._paths and all(map(_is_log, self._paths)):
            logs = read_logs(self._paths, self.notes, self._progress, self._literals)
            self.policy, self.parsers = logs.policy, logs.parsers
            yield from logs
            return
        for path in self._paths:
            self._path = path
            yield from self._one(path)

    def _one(self, path: Path) -> Iterator[Record]:
        if path.is_dir():
            yield from self._directory(path)
        elif str(path) != "-" and not path.exists():
            raise _missing(path)
        elif _is_log(path):  # beside evidence of other kinds; of a pipe as well, which can be read once only
            yield from read_log(path, self.notes, self._progress, literals=self._literals)
        elif path.name.endswith(bundle.ENDINGS) or bundle.is_archive(path):
            reader = JournalReader([], self._progress.passed)
            yield from self._with_notes(reader, bundle.read_bundle(path, reader, self.notes, self._progress))
        elif path.name.endswith(".jsonl.gz"):
            yield from self._journal([path])

    def _directory(self, path: Path) -> Iterator[Record]:
        found = [segment for segment in segments(path) if not leads_out(segment, path)]
        if (path / "run.json").exists():
            read_run(str(path))  # raises where another version of diag wrote it
        if found:
            yield from self._journal(found)
        elif holds_evidence(path):
            yield from folder_records(path, self.notes, self._progress)
        elif (path / "run.json").exists() and path.absolute().parent.name == PAST:
            raise DiagError(
                f"of {path} only what `diag runs` tells is kept: its journal was removed to make room",
                hint="the newest 20 runs are kept whole; a bundle of `diag dump -o FILE` stays",
                exit_code=2,
            )
        else:
            raise DiagError(
                f"{path} holds nothing that diag can replay: no journal, no logs, no stacks, no recorder files",
                hint="give a run directory, a bundle of `diag dump`, log files, or a folder of evidence",
                exit_code=2,
            )

    def _journal(self, paths: list[Path]) -> Iterator[Record]:
        reader = JournalReader(paths, self._progress.passed)
        self._progress.expect(sum(path.stat().st_size for path in paths))
        last: Record | None = None
        for last in self._with_notes(reader, reader):
            yield last
        if reader.notes.unended and last is not None:
            yield run_source.cut_off(last.at)

    def _with_notes(self, reader: JournalReader, records: Iterable[Record]) -> Iterator[Record]:
        """The first journal's policy is that of all."""
        for record in records:
            self.policy = self.policy or reader.policy
            yield record
        if reader.notes.torn:
            torn = "the journal ends in the middle of a record (it was still being written, or its writer was killed)"
            self.notes.append(torn)
        if reader.notes.bad_lines:
            self.notes.append(f"{reader.notes.bad_lines} journal lines are not records and were skipped")


def _is_log(path: Path) -> bool:
    """Whether it is a plain log or stdin, and no evidence of another kind. What does not exist is reported
    by whoever opens it."""
    if str(path) == "-" or (path.exists() and not path.is_dir() and not path.is_file()):
        return True
    if not path.is_file() or path.name.endswith((*bundle.ENDINGS, ".jsonl.gz")):
        return False
    return not bundle.is_archive(path)


def _missing(path: Path) -> DiagError:
    from diag.text.suggest import address_of, file_beside

    if address := address_of(path):
        return DiagError(
            f"{address} is an address, and diag downloads nothing",
            exit_code=2,
            hint=f"a log: curl -sSL '{address}' | diag replay -; else save it, and give the file",
        )
    return DiagError(f"{path} does not exist", hint=file_beside(path), exit_code=2)
