"""Findings, reports and merged stacks as plain text for terminals and logs.

Every word that comes from outside goes through `clean`: a log line can neither move the cursor nor forge a
line of ours. Colour only repeats what a word states.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diag.model import Change, ChangeKind
from diag.outputs.view.sentence import format_span, job_sentence, lasted, name_of, split
from diag.text.columns import cut, wrap, wrap_long, wrap_wide
from diag.text.sanitize import clean
from diag.text.units import format_bytes, format_ranks, format_seconds, format_time

if TYPE_CHECKING:  # `diag dump` prints a document and must not wait for the engine to be imported
    from diag.model.observations import EvidenceKept
    from diag.outputs.view.classes import StackClass

# Marks our lines among the job's on one stream; plain ASCII, so that any locale can print it.
_PREFIX = "diag| "
_NARROWEST = 30
_LONGEST_WHO = 30  # columns of a title; longer lists of ranks get a line of their own
_PANEL_EVIDENCE_LINES = 3
_REPORT_EVIDENCE_LINES = 12
_NATIVE_FRAMES = 16  # innermost: C code below the first Python frames
_FRAMES = 10  # innermost frames of a stack class; the rest is launcher and trainer

# Of a job that is started again as it is; nothing where that is not known.
_AGAIN = {
    "yes": "retry: may come through",
    "no": "retry: to be expected again",
    "elsewhere": "retry: on another node",
}

_COLOURS = {"critical": "1;31", "warning": "33", "info": "36", "resolved": "32"}


def _clean_lines(text: str) -> list[str]:
    # A pager's worth is enough to cut from; splitting on \n alone keeps a redrawn bar on one line until here.
    lines = re.split(r"\r\n|\r|\n", text)
    return [line for line in (clean(line).rstrip() for line in lines) if line]


def _ranks(ranks: Sequence[int]) -> str:
    return format_ranks(ranks, longest=sys.maxsize)


def _title(finding: Mapping[str, Any]) -> str:
    """What and who: the first that a person must see.

    >>> _title({"id": "hang", "class": "stopped", "ranks": [3]}), _title({"id": "disk-full", "class": "", "ranks": []})
    ('hang (stopped): rank 3;', 'disk-full:')
    """
    return name_of(finding) + (f": {_who(finding['ranks'])};" if finding["ranks"] else ":")


def _who(ranks: Sequence[int]) -> str:
    named = _ranks(ranks)
    return named if len(named) <= _LONGEST_WHO else f"{len(ranks)} ranks"


# --- one finding


def panel(change: Change, colour: bool = False, width: int = 80, lang: str = "en") -> str:
    """A finding that opened, changed or resolved, as a few lines that end without a newline; `lang` zh: in
    Chinese, as far as there is any."""
    room = max(width, _NARROWEST) - len(_PREFIX)
    finding = change.finding.to_json()
    body: list[str] = []
    if change.kind is ChangeKind.RESOLVED:
        head = _head("resolved", _how_resolved(change), colour, room, lang)
    else:
        held = format_seconds(max(0.0, change.at - change.opened_at))
        opened = change.kind is ChangeKind.OPENED
        when = format_time(change.at, change.at) if opened else f"changed after {held}"
        about = f"{when}, {finding['confidence']} confidence"
        head = _head(finding["severity"], f"{_title(finding)} {about}", colour, room, lang)
        body = list(_body(finding, room, "  ", _PANEL_EVIDENCE_LINES, lang))
    return "\n".join(_PREFIX + line for line in [*head, *body])


def _how_resolved(change: Change) -> str:
    """From beginning to end, and who moves again where that was seen; its text of when it was open is not
    true any more."""
    finding = {**change.finding.to_json(), "resolved_at": change.resolved_at}
    if change.replaced:
        return f"{_title(finding)} another finding takes its place"
    length = lasted(finding)
    after = (
        f"after {format_seconds(length)} ({format_span(finding, change.at)})" if length is not None else ""
    )
    if change.moved_again:
        verb = "moves" if len(change.moved_again) == 1 else "move"
        return f"{name_of(finding)}: {_who(change.moved_again)} {verb} again {after}".rstrip()
    return f"{_title(finding)} over {after}".rstrip()


def _head(kind: str, text: str, colour: bool, room: int, lang: str = "en") -> list[str]:
    """The severity as a word, then the text; painted after the wrapping, which must not count the colour."""
    word = kind.upper() if lang == "en" else shown(kind, lang)
    first, *more = _wrapped(f"{word} {shown(text, lang)}", lang, room, "", "  ")
    if colour and kind in _COLOURS:
        first = f"\x1b[{_COLOURS[kind]}m{word}\x1b[0m" + first[len(word) :]
    return [first, *more]


def shown(text: str, lang: str) -> str:
    """A text of diag in the language of the reader: "zh", as far as there is Chinese, or "en"."""
    if lang == "en":
        return text
    from diag.outputs.chinese import in_chinese  # who reads English waits for no catalogue

    return in_chinese(text)


def _wrapped(text: str, lang: str, room: int, indent: str = "", rest: str | None = None) -> list[str]:
    return (wrap if lang == "en" else wrap_wide)(text, room, indent, rest)


def over_head(finding: Mapping[str, Any], now: float | None) -> str:
    """Of a finding that is over: what, who, from when to when."""
    length = lasted(finding)
    when = f" {format_span(finding, now)} ({format_seconds(length)})," if length is not None else ""
    return f"{_title(finding)}{when} was {finding['severity']}, {finding['confidence']} confidence"


def _body(
    finding: Mapping[str, Any], room: int, indent: str, evidence_lines: int, lang: str
) -> Iterator[str]:
    """What happened, what to do, and below it on what grounds. A finding that is over is shown with the text of
    that time."""
    summary, advice, then, do = finding["summary"], finding["advice"], "then: ", "do: "
    if lang != "en":
        from diag.outputs.chinese import of_finding

        summary, advice = of_finding(finding, "summary"), of_finding(finding, "advice")
        then, do = shown("then:", lang), shown("do:", lang)
    lead = then if finding.get("resolved_at") is not None else ""
    yield from _wrapped(lead + clean(summary), lang, room, indent)
    if summary == finding["summary"] and lang != "en":
        yield from _meaning(finding["id"], room, indent, lang)
    if advice:
        yield from _wrapped(do + clean(advice), lang, room, indent, indent + "    ")
    if finding.get("bundle"):
        yield f"{indent}{'kept: ' if lang == 'en' else shown('kept:', lang)}{clean(finding['bundle'])}"
    who = []
    if finding["ranks"] and _who(finding["ranks"]) != _ranks(finding["ranks"]):
        who.append(f"culprit: {_ranks(finding['ranks'])}")
    if finding["waiting_ranks"]:
        who.append(f"waiting: {_ranks(finding['waiting_ranks'])}")
    if finding["cause"]:
        who.append(f"cause: {clean(finding['cause'])}")
    if finding["severity"] == "critical" and (again := _AGAIN.get(finding.get("retryable", ""))):
        who.append(again)
    if who:
        yield from _wrapped(shown("; ".join(who), lang), lang, room, indent, indent + "  ")
    yield from _evidence(finding["evidence"], room, indent, evidence_lines, lang)


def _meaning(finding: str, room: int, indent: str, lang: str) -> Iterator[str]:
    """What such a finding means in one sentence of that language, and where its page is; nothing where there
    is none."""
    from diag.outputs.manual import meaning

    meant = meaning(finding, lang)
    if meant:
        yield from wrap_wide(meant, room, indent)
        yield from wrap_wide(f"说明：diag explain {clean(finding)} --lang {lang}", room, indent)


def _evidence(
    items: Sequence[Mapping[str, Any]], room: int, indent: str, budget: int, lang: str
) -> Iterator[str]:
    """As it was read, in the words of those who wrote it."""
    first = items[:budget]
    each = budget // len(first) if first else 0
    for item in first:
        source = clean(item["kind"]) + ("" if item["rank"] is None else f", rank {item['rank']}")
        source += f", {clean(item['where'])}" if item.get("where") else ""
        lines = _clean_lines(item["excerpt"])
        # What decides comes last: the innermost frame, the error under its traceback.
        for index, line in enumerate(lines[-each:] if lines else [shown("(nothing to show)", lang)]):
            lead = f"{indent}[{source}] " if index == 0 else indent + "  "
            yield from wrap_long(lead + line, room, indent + "    ")
    if len(items) > len(first):
        yield indent + shown(f"and {len(items) - len(first)} more", lang)


# --- stacks


def classes_text(
    classes: Iterable[StackClass], width: int = 80, frames: int = _FRAMES, lang: str = "en"
) -> str:
    """Merged stacks as a tree of where the ranks part: outliers first; under each class the frames of one,
    outermost first."""
    from diag.outputs.terminal.tree_text import class_lines

    say = partial(_of_stacks, lang=lang)
    return "\n".join(class_lines(classes, max(width, _NARROWEST), frames, say))


def _of_stacks(text: str, lang: str) -> str:
    """`diag top` shows the same tree, in the same words."""
    if lang == "en":
        return text
    from diag.outputs.chinese import by_line

    return by_line(text, "top")


# --- a whole report


def report_text(
    document: Mapping[str, Any],
    *,
    colour: bool = False,
    width: int = 80,
    heading: str = "",
    lang: str = "en",
) -> str:
    """A `diag.report/1` document for people: the job, what was found, what could not be checked. Ends without a newline.

    `heading` replaces a missing sentence about the job. `lang` zh: in Chinese, as far as there is any.
    """
    room = max(width, _NARROWEST)
    sentence = clean(heading or document.get("sentence") or job_sentence(document))
    lines = _wrapped(shown(sentence, lang), lang, room)
    if speed := document.get("job", {}).get("speed"):
        from diag.outputs.view.speed import speed_lines  # `diag dump` must not wait for it

        for line in speed_lines(speed):
            lines += _wrapped(shown(clean(line), lang), lang, room, "", "  ")
    if document.get("log"):
        lines += _wrapped(shown(clean(_log_sentence(document["log"])), lang), lang, room)
    open_now, over = split(document)
    heads = [(finding["severity"], _open_head(finding), finding) for finding in open_now]
    for kind, head, finding in (*heads, *(("over", over_head(one, None), one) for one in over)):
        lines += ["", *_head(kind, head, colour, room, lang)]
        lines += _body(finding, room, "  ", _REPORT_EVIDENCE_LINES, lang)
    if document.get("past_left_out"):
        lines += ["", shown(f"and {document['past_left_out']} more that are over", lang)]
    lines += _acts(document, lang, room)
    if document["not_checked"]:
        lines += ["", shown("Not checked:", lang)]
        for line in document["not_checked"]:
            what, reason, remedy = (shown(line[name], lang) for name in ("what", "reason", "remedy"))
            text = clean(f"{what}{': ' if lang == 'en' else '：'}{reason}{f' -> {remedy}' if remedy else ''}")
            lines += _wrapped(text, lang, room, "  ", "    ")
    return "\n".join(lines)


def _acts(document: Mapping[str, Any], lang: str, room: int) -> Iterator[str]:
    """What `diag run --on` did, and the attempts that it ended before this one."""
    for one in document.get("attempts", ()):
        what = name_of({"id": one["finding"], "class": one["class"]})
        who = f" of {format_ranks(one['ranks'])}" if one["ranks"] else ""
        text = f"Attempt {one['number']} was ended by diag at {format_time(one['ended'])} for {what}{who}"
        if one["iteration"] is not None:
            text += f", last step {one['iteration']}"
        yield from _wrapped(shown(clean(text), lang), lang, room, "", "  ")
        for step in one["steps"]:
            yield from _wrapped(clean(f"{format_time(step['at'])} {step['text']}"), lang, room, "  ", "    ")
    if document.get("actions"):
        yield from ("", shown("Actions (--on):", lang))
    for one in document.get("actions", ()):
        text = f"{format_time(one['at'])} {one['action']}: {one['text']}"
        yield from _wrapped(clean(text), lang, room, "  ", "    ")


def _open_head(finding: Mapping[str, Any]) -> str:
    about = f"{_title(finding)} {finding['confidence']} confidence"
    if finding["since"] >= 1:  # a log from stdin whose lines have no times begins at zero
        about += f", since {format_time(finding['since'])}"
    return about + (", open when the job ended" if finding.get("open_at_end") else "")


def _log_sentence(log: Mapping[str, Any]) -> str:
    """
    >>> _log_sentence({"files": ["train.log"], "lines": 1234, "launcher": "torchrun", "began": None, "ended": None})
    'train.log: 1,234 lines; launched by torchrun.'
    """
    files = log["files"]
    described = (
        files[0] if len(files) == 1 else f"{len(files)} logs"
    ) + f": {log['lines']:,} line{'' if log['lines'] == 1 else 's'}"
    if log["began"] is not None and log["ended"] is not None:
        described += f" from {format_time(log['began'])} to {format_time(log['ended'], log['began'])}"
    if log["launcher"]:
        described += f"; launched by {log['launcher']}"
    if before := log.get("earlier_attempts"):
        first = before["lines"] + 1
        described += f". Lines {first:,} to {before['lines'] + log['lines']:,} are judged, the last of "
        described += f"{before['count'] + 1} attempts; the one before ended with: {before['ended_with']}"
        return described
    if last := log.get("last_line"):  # whether it tells of an end, its reader knows
        described += f'. Its last line: "{last}"'
        return described
    return described + "."


def dump_text(document: dict[str, Any], *, colour: bool, width: int, lang: str = "en") -> str:
    """The dump for a terminal: verdict, merged stacks, what is missing and where the bundle is."""
    parts = [
        report_text(document["report"], colour=colour, width=width, lang=lang),
        "",
        _of_stacks(document["text"], lang),
    ]
    by_reason: dict[str, list[int]] = {}
    for rank, reasons in document["missing"].items():
        for reason in reasons:
            by_reason.setdefault(reason, []).append(int(rank))
    for reason, ranks in by_reason.items():
        parts.append(shown(f"missing: {_ranks(ranks)}: {reason}", lang))
    arrivals, room = document.get("arrivals"), max(width, _NARROWEST)
    about = [*document.get("pace", {}).get("text", ()), *([arrivals["text"]] if arrivals else [])]
    machine = (line for part in ("network", "npus", "ray") for line in document.get(part, {}).get("text", ()))
    for line in (*about, *machine):
        parts += _wrapped(clean(shown(line, lang)), lang, room, "", "    ")
    for native in document.get("native", ()):
        parts += _native_lines(native, room)
    seconds, paused = format_seconds(document["seconds"]), _format_paused(document["probes"])
    parts.append(shown(f"{len(document['ranks'])} ranks in {seconds}, {paused}", lang))
    if document.get("bundle"):
        bundle = f"bundle: {document['bundle']}   (look again: diag replay {document['bundle']})"
        parts.append(shown(bundle, lang))
        parts += _wrapped(clean(shown(_in_bundle(document), lang)), lang, room, "", "    ")
    elif document.get("bundle_error"):
        parts.append(shown(f"no bundle: {document['bundle_error']}", lang))
    if document.get("next_command"):
        parts.append(shown(f"next: {document['next_command']}   ({document['next_reason']})", lang))
    return "\n".join(parts)


def _in_bundle(document: Mapping[str, Any]) -> str:
    read = document.get("processes", ())
    text = "in it: stacks.txt, dump.json, the journal"
    if read:
        count = f"{len(read)} process{'' if len(read) == 1 else 'es'}"
        text += f"; proc/rank*.txt: open files, sockets, threads with system calls, limits and memory map of {count}"
    return text


def kept_line(evidence: EvidenceKept) -> str:
    """Said once, when a bundle was written without a person."""
    names = ", ".join(dict.fromkeys(clean(name) for name, _ in evidence.findings))
    path = shlex.quote(clean(evidence.path))
    return f"evidence of {names} is kept ({format_bytes(evidence.size_bytes)}): diag replay {path}"


def _format_paused(probes: Iterable[Mapping[str, Any]]) -> str:
    paused = [probe for probe in probes if probe.get("paused_target")]
    if not paused:
        return "no process was paused"
    longest = max(float(probe["seconds"] or 0.0) for probe in paused)
    ranks = [int(probe["rank"]) for probe in paused]
    return f"{_ranks(ranks)} paused for native frames, at most {format_seconds(longest)}"


def _native_lines(native: Mapping[str, Any], room: int) -> list[str]:
    """The threads that have Python frames, or the first one; of each the innermost frames."""
    head = f"native frames of rank {native['rank']} (pid {native['pid']})"
    if native["reason"]:
        return wrap(clean(f"{head}: none: {native['reason']}"), room, "", "    ")
    lines = [f"{head}, innermost first:"]
    for thread in native["threads"][:4]:
        lines.append(cut(f"  thread {clean(str(thread['name'] or thread['id']))}", room))
        for frame in thread["frames"][:_NATIVE_FRAMES]:
            lines += wrap_long(f"    {clean(frame)}", room, "      ")
    if len(native["threads"]) > 4:
        lines.append(f"  ... {len(native['threads']) - 4} more threads in the bundle")
    return lines
