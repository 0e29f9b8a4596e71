"""What to do about a failure that no rule knows, by its form: the exception's class, the words of its message, the
failing line of source and who raised it. The forms lie as YAML beside this file, each with its Chinese.

A form's advice is a list of sentences with places for what the failure's own lines say. A sentence may be a list: of
those the first counts whose places are filled. One that has none is left out; a form whose first sentence is, is none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from diag.detectors.remedies.failure import Failure, failure_of
from diag.text.tables import load_table, places

__all__ = ["Form", "all_forms", "hint", "remedy"]

_FOLDER = Path(__file__).parent
# The first form that fits counts: the narrow before the wide.
_FILES = (
    "submission",
    "hardware",
    "frameworks",
    "system",
    "training",
    "names",
    "calls",
    "tensors",
    "data",
    "services",
    "settings",
    "starting",
    "general",
)
_LONGEST = 160  # characters of a place's value
_SUBSCRIPT = re.compile(r"([A-Za-z_][\w.]*(?:\[[^\[\]]{1,80}\])*)\[([^\[\]]{1,120})\]")
_OFFERED = re.compile(
    r"(?i)(?:(?:choose from|select one of|must be (?:one of|in)|expected one of"
    r"|should be (?:one of|in)|has to be one of|is not (?:one of|in)) ?:? ?"
    r"|\b(?:available|supported|valid|known|possible|options|choices)\b[^:(\[{]{0,60}[:(\[{]\s{0,2})[(\[{]?(.{3,1200})"
)
_OF_PEERS = re.compile(r"(?i)NCCL|HCCL|\bgloo\b|store->|c10d|CUDA error|ProcessGroup")
_GIVEN = re.compile(r"^(\S{1,80}) is not (?:an? |one |in )")
_QUOTED = re.compile(r"['\"`]([^'\"`\n]{1,80})['\"`]")
_TOLD = re.compile(
    r"(?i)^(?:please |make sure|be sure|try |use |set |pass |run |install |consider |specify |provide |add |remove |enable "
    r"|disable |call |increase |decrease |reduce |upgrade |downgrade |update |check |ensure |see |did you |perhaps |maybe |either "
    r"|to (?:fix|use|avoid|resolve|solve|disable|enable|suppress|overwrite)\b|if you )"
    r"|\b(?:please|you (?:should|must|need to|may|can|might|have to|probably)|make sure to|did you (?:mean|forget)"
    r"|instead of|try (?:setting|running|using|increasing|reducing|passing)|(?:should|must|need to|have to|can) be "
    r"(?:set|installed|given|passed|provided|specified))\b|请|必须"
)
# Of a bug's report, and of what only shows more of the error:
_NOT_TOLD = re.compile(
    r"(?i)\b(?:report (?:this|the|a|it)|file an? (?:issue|bug)|open an? issue|developers"
    r"|for (?:more|further|additional|full)? ?(?:information|details|help|usage)|(?:stack ?trace|traceback|documentation|call stack)\b)"
)
_POINTS = re.compile(r"(?i)\W*(?:see|refer to|check out)\b")  # to a text that has more
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of failure. What is not given fits any."""

    id: str
    raised: re.Pattern[str] | None
    says: re.Pattern[str] | None
    code: re.Pattern[str] | None
    holder: re.Pattern[str] | None
    through: re.Pattern[str] | None  # a frame's file and function, as `file:function`, or a line of source
    innermost: str  # whose line failed: "own" (the program's), "library"; "" for either
    line: bool  # also of lines that name no exception
    general: bool  # of a class of exceptions, whatever it says
    do: tuple[tuple[str, ...], ...]
    zh: tuple[tuple[str, ...], ...]
    example: str


@cache
def all_forms() -> tuple[Form, ...]:
    return tuple(
        _form(row, general=name == "general")
        for name in _FILES
        for row in load_table(_FOLDER / f"{name}.yaml")["forms"]
    )


def _form(row: dict[str, Any], *, general: bool) -> Form:
    import re2  # not for a command that reports nothing

    def compiled(name: str, *, whole: bool = False) -> re.Pattern[str] | None:
        text = row.get(name)
        return None if text is None else re2.compile(f"^(?:{text})$" if whole else f"(?m){text}")

    return Form(
        row["id"],
        compiled("raised", whole=True),
        compiled("says"),
        compiled("code"),
        compiled("holder", whole=True),
        compiled("through"),
        row.get("innermost", ""),
        bool(row.get("line")),
        general,
        _sentences(row, "do"),
        _sentences(row, "zh"),
        row["example"],
    )


def remedy(lines: Sequence[str], error: str, *, general: bool = True) -> str:
    """What to do, "" where no form fits. `error` is the line that is the root, `lines` those around it, oldest first.
    Without `general` only by what the message says."""
    failure = failure_of(lines, error)
    values = _values(failure)
    for form in all_forms():
        if form.general and (not general or _is_no_refusal(failure)):
            break
        found = _match(form, failure, values)
        if found is None:
            continue
        shown = [_filled(others, found) for others in form.do]
        if shown[0]:
            if values["hint"] and not any(values["hint"] in text for text in shown):
                shown.insert(0, _filled(hint("do"), values))  # it knows better than a form
            return " ".join(filter(None, shown))
    return ""


def hint(key: str) -> tuple[str, ...]:
    """The sentence before a form's for what the message itself tells to do, in English (`do`) or Chinese (`zh`)."""
    return tuple(load_table(_FOLDER / "shared.yaml")["hint"][key])


def _is_no_refusal(failure: Failure) -> bool:
    """Of what ends a program on purpose, and of what a library of communication reports, who called says nothing."""
    return (
        failure.type in ("SystemExit", "KeyboardInterrupt") or _OF_PEERS.search(failure.message) is not None
    )


def _match(form: Form, failure: Failure, values: dict[str, str]) -> dict[str, str] | None:
    """The values for its places, where it fits."""
    if not failure.type and not form.line:
        return None
    if form.innermost and (not failure.frames or failure.is_own != (form.innermost == "own")):
        return None
    found = dict(values)
    first = failure.message.partition("\n")[0]
    tried = (
        (form.raised if failure.type else None, (failure.type,)),
        # what is a line by itself stands in the first of an exception's
        (form.says, (first if form.line and form.raised is None else failure.message,)),
        (form.holder, (values["holder"],)),
        (form.code, [frame.code for frame in (failure.own, *failure.frames[-1:]) if frame is not None]),
        (form.through, [*(f"{frame.file}:{frame.function}" for frame in failure.frames), *failure.above]),
    )
    for pattern, texts in tried:
        if pattern is None:
            continue
        match = next(filter(None, map(pattern.search, texts)), None)
        if match is None:
            return None
        found |= {name.rstrip("0123456789"): _short(text) for name, text in match.groupdict().items() if text}
    return found if _balanced(found.get("condition", "")) else None


def _balanced(code: str) -> bool:
    """Whether the source is no part of a longer one, as far as brackets show it."""
    return all(code.count(opening) == code.count(closing) for opening, closing in ("()", "[]", "{}"))


def _sentences(row: dict[str, Any], key: str) -> tuple[tuple[str, ...], ...]:
    shared = load_table(_FOLDER / "shared.yaml")
    found = (
        shared[one][key] if isinstance(one, str) and one in shared else [one] if isinstance(one, str) else one
        for one in row[key]
    )
    return tuple(map(tuple, found))


def _filled(sentences: Sequence[str], values: dict[str, str]) -> str:
    """The first of them whose places all have a value, with these; "" where none has."""
    for sentence in sentences:
        if all(values.get(name) for name in places(sentence)):
            return sentence.format(**values)
    return ""


def _values(failure: Failure) -> dict[str, str]:
    """Places that every form has: "" for what the lines do not say."""
    own, last = failure.own, failure.frames[-1] if failure.frames else None
    frame = own or last
    code = frame.code if frame is not None and not frame.code.startswith("raise ") else ""
    key = failure.message.strip().strip("'\"") if failure.type == "KeyError" else ""
    holder, subscript = _subscripted(code, key)
    wanted, closest = _closest(failure.message)
    values = {
        "type": failure.type,
        "message": failure.message.partition("\n")[0],
        "own": "" if own is None else str(own),
        "here": "" if frame is None or not (own is None or failure.is_own) else str(frame),
        "via": "" if own is None or failure.is_own else str(own),
        "at": "" if frame is None else str(frame),
        "last": "" if last is None else str(last),
        "function": "" if last is None or last.function.startswith("<") else last.function,
        "code": code,
        "holder": holder,
        "subscript": subscript,
        "package": failure.package,
        "wanted": wanted,
        "closest": closest,
        "told": next(_told(failure.message), ""),
        # what stands below may be another's
        "hint": next(
            (one for one in _told(failure.message.partition("\n")[0]) if not _POINTS.match(one)), ""
        ),
    }
    return {name: _short(text) for name, text in values.items()}


def _subscripted(code: str, key: str) -> tuple[str, str]:
    """Of `feats[seq]` what is looked into and by what: that with the key in it, else the last.

    >>> _subscripted('self.tracer = conf["fixer"]["inds"]', "inds")
    ('conf["fixer"]', '"inds"')
    """
    found = list(_SUBSCRIPT.finditer(code))
    with_key = [match for match in found if key and key in match[2]]
    return next(((match[1], match[2]) for match in reversed(with_key or found)), ("", ""))


def _closest(message: str) -> tuple[str, str]:
    """What was given, and of what the message offers the most alike; "" each where there is none.

    >>> _closest("Unknown optimizer 'adamm', available: adam, sgd")
    ('adamm', 'adam')
    """
    offered = _OFFERED.search(message)
    if offered is None:
        return "", ""
    names = [name.strip(" '\"`()[]{}.") for name in re.split(r"[,|\n]| or | and ", offered[1])][:200]
    plain = _GIVEN.match(message)
    given = plain[1].strip("'\"`") if plain else (_QUOTED.findall(message[: offered.start()]) or [""])[-1]
    near = difflib.get_close_matches(given, [name for name in names if name], 1, 0.6) if given else []
    return given, near[0] if near else ""


def _told(message: str) -> Iterator[str]:
    """Sentences of the message that say what to do.

    >>> list(_told("Normalization stats not found. Make sure to run `stats.py`."))
    ['Make sure to run `stats.py`.']
    """
    for sentence in _SENTENCE.split(message):
        if len(sentence) > 8 and _TOLD.search(sentence) and not _NOT_TOLD.search(sentence):
            yield sentence.strip()


def _short(text: str) -> str:
    """Without what would end its quotes."""
    text = " ".join(text.split()).replace("`", "'").replace('"', "'")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
