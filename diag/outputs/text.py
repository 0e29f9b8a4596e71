"""Findings, reports and merged stacks as plain text for terminals and logs.

Every word that comes from outside goes through `clean`: a log line can neither move the cursor nor forge a line of
ours. Colour only repeats what a word says.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from diag.model import Change, ChangeKind, Severity, format_ranks
from diag.printable import clean
from diag.state.savefacts import save_words

if TYPE_CHECKING:  # `diag dump` prints a document and must not wait for the engine to be imported
    from diag.outputs.classes import StackClass

__all__ = ["classes_text", "clean", "dump_text", "job_sentence", "panel", "report_text", "summary_line"]

_PREFIX = "diag| "  # tells our lines from the job's on one stream; plain ASCII, so that any locale can print it
_NARROWEST = 30
_LONGEST_WHO = 30  # columns of a title; longer lists of ranks stand in a line of their own
_PANEL_EVIDENCE_LINES = 3
_REPORT_EVIDENCE_LINES = 12
_NATIVE_FRAMES = 16  # innermost: C code below the first Python frames
_FRAMES = 10  # innermost frames of a stack class; the rest is launcher and trainer

_COLOURS = {"critical": "1;31", "warning": "33", "info": "36", "resolved": "32"}

def _clean_lines(text: str) -> list[str]:
    # A pager's worth is enough to cut from; splitting on \n alone keeps a redrawn bar on one line until here.
    lines = re.split(r"\r\n|\r|\n", text)
    return [line for line in (clean(line).rstrip() for line in lines) if line]


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(map(_char_columns, text))


def _char_columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, width: int) -> str:
    """At most `width` columns, with dots where something was cut off."""
    if _columns(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _char_columns(char)
        if used > width - 3:
            break
        kept.append(char)
    return "".join(kept).rstrip() + "..."


def _wrap(text: str, width: int, indent: str = "", rest: str | None = None) -> list[str]:
    """Lines of at most `width` columns; words longer than a line are broken."""
    rest = indent if rest is None else rest
    lines: list[str] = []
    line = indent
    empty = True
    for word in text.split():
        left = word
        while left:
            lead = line if empty else line + " "
            room = width - _columns(lead)
            if _columns(left) <= room:
                line, empty, left = lead + left, False, ""
            elif not empty:
                lines.append(line)
                line, empty = rest, True
            else:
                size = _fitting(left, room)
                lines.append(line + left[:size])
                line, left = rest, left[size:]
    return lines if empty and lines else [*lines, line]


def _fitting(word: str, room: int) -> int:
    used = 0
    for index, char in enumerate(word):
        used += _char_columns(char)
        if used > room:
            return max(1, index)
    return len(word)


def _moment(at: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at).strftime(form)
    except (OverflowError, OSError, ValueError):  # a time that a broken capture made up
        return f"{at:.0f}"


def _duration(seconds: float) -> str:
    """
    >>> _duration(61.2), _duration(4.26)
    ('1 min 1 s', '4.3 s')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + format_ranks(ranks)


def _name(finding: Mapping[str, Any]) -> str:
    klass = finding.get("class")
    return clean(finding["id"] + (f" ({klass})" if klass else ""))


def _title(finding: Mapping[str, Any]) -> str:
    """What and who: the first that a person must see.

    >>> _title({"id": "hang", "class": "stopped", "ranks": [3]}), _title({"id": "disk-full", "class": "", "ranks": []})
    ('hang (stopped): rank 3;', 'disk-full:')
    """
    return _name(finding) + (f": {_who(finding['ranks'])};" if finding["ranks"] else ":")


def _who(ranks: Sequence[int]) -> str:
    named = _ranks(ranks)
    return named if len(named) <= _LONGEST_WHO else f"{len(ranks)} ranks"


# --- one finding ---------------------------------------------------------------------------------------------


def panel(change: Change, colour: bool = False, width: int = 80, lang: str = "en") -> str:
    """A finding that opened, changed or resolved, as a few lines that end without a newline; `lang` zh: with its meaning in
    Chinese when it opens."""
    room = max(width, _NARROWEST) - len(_PREFIX)
    finding = change.finding.to_json()
    held = _duration(max(0.0, change.at - change.opened_at))
    if change.kind is ChangeKind.RESOLVED:
        head = _head("resolved", f"{_title(finding)} after {held}, was {finding['severity']}", colour, room)
        body = _wrap(clean(finding["summary"]), room, "  ")
    else:
        opened = change.kind is ChangeKind.OPENED
        when = _moment(change.at, "%H:%M:%S") if opened else f"changed after {held}"
        about = f"{when}, {finding['confidence']} confidence"
        head = _head(finding["severity"], f"{_title(finding)} {about}", colour, room)
        body = list(_body(finding, room, "  ", _PANEL_EVIDENCE_LINES, lang if opened else "en"))
    return "\n".join(_PREFIX + line for line in [*head, *body])


def _head(kind: str, text: str, colour: bool, room: int) -> list[str]:
    """The severity as a word, then the text; painted after the wrapping, which must not count the colour."""
    word = kind.upper()
    first, *more = _wrap(f"{word} {text}", room, "", "  ")
    if colour and kind in _COLOURS:
        first = f"\x1b[{_COLOURS[kind]}m{word}\x1b[0m" + first[len(word) :]
    return [first, *more]


def _body(finding: Mapping[str, Any], room: int, indent: str, evidence_lines: int, lang: str) -> Iterator[str]:
    """What happened, what to do, and below it on what grounds."""
    yield from _wrap(clean(finding["summary"]), room, indent)
    if lang != "en":
        yield from _meaning(finding["id"], room, indent, lang)
    if finding["advice"]:
        yield from _wrap("do: " + clean(finding["advice"]), room, indent, indent + "    ")
    who = []
    if finding["ranks"] and _who(finding["ranks"]) != _ranks(finding["ranks"]):
        who.append(f"culprit: {_ranks(finding['ranks'])}")
    if finding["waiting_ranks"]:
        who.append(f"waiting: {_ranks(finding['waiting_ranks'])}")
    if finding["cause"]:
        who.append(f"cause: {clean(finding['cause'])}")
    if who:
        yield from _wrap("; ".join(who), room, indent, indent + "  ")
    yield from _evidence(finding["evidence"], room, indent, evidence_lines)


def _meaning(finding: str, room: int, indent: str, lang: str) -> Iterator[str]:
    """What such a finding means in one sentence of that language, and where its page is; nothing where there is none."""
    from diag.manual import meaning
    from diag.outputs.wide import wrap

    told = meaning(finding, lang)
    if told:
        yield from wrap(told, room, indent)
        yield from wrap(f"说明: diag explain {clean(finding)} --lang {lang}", room, indent)


def _evidence(items: Sequence[Mapping[str, Any]], room: int, indent: str, budget: int) -> Iterator[str]:
    shown = items[:budget]
    each = budget // len(shown) if shown else 0
    for item in shown:
        source = clean(item["kind"]) + ("" if item["rank"] is None else f", rank {item['rank']}")
        source += f", {clean(item['where'])}" if item.get("where") else ""
        lines = _clean_lines(item["excerpt"])
        # What decides stands last: the innermost frame, the error under its traceback.
        for index, line in enumerate(lines[-each:] if lines else ["(nothing to show)"]):
            lead = f"{indent}[{source}] " if index == 0 else indent + "  "
            yield _cut(lead + line, room)
    if len(items) > len(shown):
        yield f"{indent}and {len(items) - len(shown)} more"


# --- stacks --------------------------------------------------------------------------------------------------


def classes_text(classes: Iterable[StackClass], width: int = 80, frames: int = _FRAMES) -> str:
    """Merged stacks as a tree of where the ranks part: outliers first; under each class the frames of one, outermost first."""
    from diag.outputs.tree_text import class_lines

    return "\n".join(class_lines(classes, max(width, _NARROWEST), frames))


# --- a whole report ------------------------------------------------------------------------------------------


def report_text(
    document: Mapping[str, Any],
    stacks: Iterable[StackClass] | None = None,
    *,
    colour: bool = False,
    width: int = 80,
    heading: str = "",
    lang: str = "en",
) -> str:
    """A `diag.report/1` document for people: the job, what was found, the stacks, what could not be looked at. Ends
    without a newline.

    `heading` replaces the sentence about the job where there is no job (doctor). `lang` zh: with the meaning of each finding
    in Chinese.
    """
    room = max(width, _NARROWEST)
    lines = _wrap(clean(heading or job_sentence(document)), room)
    if document.get("log"):
        lines += _wrap(clean(_log_sentence(document["log"])), room)
    for finding in document["findings"]:
        about = f"{finding['confidence']} confidence"
        if finding["since"] >= 1:  # a log from stdin whose lines tell no times stands at none
            about += f", since {_moment(finding['since'], '%Y-%m-%d %H:%M:%S')}"
        lines.append("")
        lines += _head(finding["severity"], f"{_title(finding)} {about}", colour, room)
        lines += _body(finding, room, "  ", _REPORT_EVIDENCE_LINES, lang)
    merged = classes_text(stacks, width) if stacks is not None else ""
    if merged:
        lines += ["", "Stacks:", merged]
    if document["not_checked"]:
        lines += ["", "Not checked:"]
        for line in document["not_checked"]:
            remedy = f" -> {line['remedy']}" if line["remedy"] else ""
            lines += _wrap(clean(f"{line['what']}: {line['reason']}{remedy}"), room, "  ", "    ")
    return "\n".join(lines)


def summary_line(document: Mapping[str, Any], *, seconds: float | None = None, run_dir: str = "") -> str:
    """What a run came to, said once at its end, of a report that holds resolved findings too. One line.

    >>> summary_line({"job": {"state": "failed", "returncode": 1}, "findings": [], "not_checked": []}, seconds=61)
    'diag: job failed (exit code 1) after 1 min 1 s; nothing found'
    """
    job = document["job"]
    said = f"diag: job {job['state']}"
    if job.get("returncode"):
        said += f" (exit code {job['returncode']})"
    if seconds is not None:
        said += f" after {_duration(seconds)}"
    if job.get("steps"):
        from diag.state.steptimes import steps_sentence  # `diag dump` must not wait for it

        said += f"; {steps_sentence(job['steps'])}"
    parts = []
    for severity in reversed(Severity):
        names = [_name(finding) for finding in document["findings"] if finding["severity"] == severity.value]
        if names:
            distinct = list(dict.fromkeys(names))
            parts.append(f"{len(names)} {severity.value}: {', '.join(distinct[:4])}{', ...' if distinct[4:] else ''}")
    said += "; found " + "; ".join(parts) if parts else "; nothing found"
    if document["not_checked"]:
        said += f"; {len(document['not_checked'])} not checked"
    counts = [finding for finding in document["findings"] if Severity(finding["severity"]).counts]
    if counts:
        said += f"; what to do: diag explain {shlex.quote(clean(_main(counts)['id']))}"
    if not run_dir:
        return said
    return said + (f"; look again: diag replay {shlex.quote(clean(run_dir))} --serve" if counts
                   else f"; evidence in {clean(run_dir)}")


def _main(findings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first of the gravest: others follow from it more often than it from them."""
    order = [severity.value for severity in Severity]
    return min(findings, key=lambda finding: (-order.index(finding["severity"]), finding["since"]))


def job_sentence(document: Mapping[str, Any]) -> str:
    """The job in one sentence, of a `diag.report/1` document."""
    job = document.get("job", {})
    parts = [f"The job is {job.get('state', 'unknown')}"]
    if job.get("phase") and job["phase"] != "ended":
        parts.append(f"phase {job['phase']}")
    if job.get("iteration") is not None:
        total = job.get("total_iterations")
        parts.append(f"iteration {job['iteration']}" + (f" of {total}" if total else ""))
    pace = (job.get("steps") or {}).get("seconds_now")
    if pace:
        parts.append(f"{pace:.2g} s a step" if pace < 10 else f"{pace:.0f} s a step")
    if job.get("save"):
        parts.append(save_words(job["save"]))
    if job.get("returncode") not in (None, 0):
        parts.append(f"exit code {job['returncode']}")
    if job.get("world_size"):
        parts.append(f"{job.get('ranks_seen', 0)} of {job['world_size']} ranks seen")
    findings = Counter(finding.get("severity", "") for finding in document.get("findings", ()))
    said = [f"{findings[word]} {word}" for word in ("critical", "warning", "info") if findings[word]]
    parts.append(", ".join(said) if said else "nothing found")
    unchecked = len(document.get("not_checked", ()))
    if unchecked:
        parts.append(f"{unchecked} not checked")
    return "; ".join(parts) + "."


def _log_sentence(log: Mapping[str, Any]) -> str:
    """
    >>> _log_sentence({"files": ["train.log"], "lines": 1234, "launcher": "torchrun", "began": None, "ended": None})
    'train.log: 1,234 lines; launched by torchrun.'
    """
    files = log["files"]
    said = (files[0] if len(files) == 1 else f"{len(files)} logs") + f": {log['lines']:,} lines"
    if log["began"] is not None and log["ended"] is not None:
        form = "%H:%M:%S" if log["ended"] - log["began"] < 43200 else "%Y-%m-%d %H:%M:%S"
        said += f" from {_moment(log['began'], '%Y-%m-%d %H:%M:%S')} to {_moment(log['ended'], form)}"
    if log["launcher"]:
        said += f"; launched by {log['launcher']}"
    return said + "."


def dump_text(document: dict[str, Any], *, colour: bool, width: int, lang: str = "en") -> str:
    """The dump for a terminal: verdict, merged stacks, what is missing and where the bundle is."""
    parts = [report_text(document["report"], colour=colour, width=width, lang=lang), "", document["text"]]
    by_reason: dict[str, list[int]] = {}
    for rank, reasons in document["missing"].items():
        for reason in reasons:
            by_reason.setdefault(reason, []).append(int(rank))
    for reason, ranks in by_reason.items():
        parts.append(f"missing: rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}: {reason}")
    arrivals = document.get("arrivals")
    for line in (*document.get("pace", {}).get("text", ()), *([arrivals["text"]] if arrivals else [])):
        parts += _wrap(clean(line), max(width, _NARROWEST), "", "    ")
    for line in document.get("network", {}).get("text", ()):
        parts += _wrap(clean(line), max(width, _NARROWEST), "", "    ")
    for native in document.get("native", ()):
        parts += _native_lines(native, max(width, _NARROWEST))
    parts.append(f"{len(document['ranks'])} ranks in {document['seconds']:.1f} s, {_paused_words(document['probes'])}")
    if document.get("bundle"):
        parts.append(f"bundle: {document['bundle']}   (look again: diag replay {document['bundle']})")
    elif document.get("bundle_error"):
        parts.append(f"no bundle: {document['bundle_error']}")
    if document.get("next_command"):
        parts.append(f"next: {document['next_command']}   ({document['next_reason']})")
    return "\n".join(parts)


def _paused_words(probes: Iterable[Mapping[str, Any]]) -> str:
    paused = [probe for probe in probes if probe.get("paused_target")]
    if not paused:
        return "no process was paused"
    longest = max(float(probe["seconds"] or 0.0) for probe in paused)
    ranks = [int(probe["rank"]) for probe in paused]
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)} paused for native frames, at most {longest:.1f} s"


def _native_lines(native: Mapping[str, Any], room: int) -> list[str]:
    """The threads that have Python frames, or the first one; of each the innermost frames."""
    head = f"native frames of rank {native['rank']} (pid {native['pid']})"
    if native["reason"]:
        return _wrap(clean(f"{head}: none: {native['reason']}"), room, "", "    ")
    lines = [f"{head}, innermost first:"]
    for thread in native["threads"][:4]:
        lines.append(_cut(f"  thread {clean(str(thread['name'] or thread['id']))}", room))
        lines += [_cut(f"    {clean(frame)}", room) for frame in thread["frames"][:_NATIVE_FRAMES]]
    if len(native["threads"]) > 4:
        lines.append(f"  ... {len(native['threads']) - 4} more threads in the bundle")
    return lines
