"""A line of output as a template: its words, and its numbers as slots. Pure; knows no program's format.

Slots of JSON, of a printed dict and of `key=value` lines have their keys for names, in whatever order these come;
those of other text their place, and the word before them. Clocks, rates and sizes are no slots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What a line shows of the time that passes: no news, whatever it counts. In the forms of loggers, tqdm, rich, urllib3, torch and curl:
#   2026-11-21 10:00:00,123   [W1120 22:48:19.163027360 socket.cpp:752]   [00:35<01:00, 1.05it/s]   1763856998.12
#   Waiting for server, 12.5 s   elapsed 35   (attempt 7/100)   Retrying (Retry(total=4, ...))   heartbeat 12
_AMOUNT = r"\d+(?:[.,]\d+)*"
CLOCK = re.compile(
    rf"(?<!\d)(?:\d{{4}}[-/]\d\d?[-/]\d\d?|\d+(?::\d\d)+(?:[.,]\d+)?(?![\d.])|1\d{{9}}(?:\d{{3}}){{0,3}}(?:\.\d+)?(?!\d)|\d+[mh]\b"
    rf"|{_AMOUNT} ?(?:[kMGTi]{{0,2}}B/s|it/s|s/it|/s|(?:[mun]?s|secs?|seconds?|min|minutes?|hours?)\b))|\? ?it/s"
    r"|\b(?i:elapsed|waited|uptime|attempts?|try|tries|retry|retries|retry\(total|heartbeat|alive)"
    rf"\W{{1,3}}{_AMOUNT}(?:(?: of |/)\d+)?"
)
# A spinner turns, and blocks of a bar stand beside its percentage.
BETWEEN = re.compile(r"[\W_]+")

_MOST_CHARS = 400
_MOST_SLOTS = 24
# Who prints the line, where it says so:   [rank0] iter 120   rank=3 step=4   {"rank": 0, "step": 120}   [Rank 1/8]
_RANK = re.compile(
    r"\[?(?<![A-Za-z])(?i:global_|local_)?(?i:rank)\W{0,3}(\d{1,6})(?![\d.])(?:/\d{1,6})?\]?:?"
)
# A rate, in words of any kind:   105.2 examples/s   1.2k tokens/sec   512.3 samples/second   210 ms/it
_RATE = re.compile(
    r"(?<![\w.+-])\d[\d.,]*[kMG]? ?[A-Za-z]{1,20}/(?:s|sec|second|it|iter|step|batch)\b", re.IGNORECASE
)
_PATH = re.compile(
    r"(?<![\w.~/-])(?:[\w.~-]{0,60}/){1,20}(?!s\b)[\w.-]{0,60}[A-Za-z_][\w.-]{0,60}|\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?"
)
_UNIT = r"(?! ?(?:°?C|W|[kKMGT]?i?[Bb]|[MG]Hz|rpm|bytes|V)\b)"
_FRACTION = r"[-+]?(?:\d{1,15}\.\d{1,20}(?:[eE][-+]?\d{1,3})?|\d{1,15}[eE][-+]?\d{1,3}|(?i:nan|inf)\b)"
_NUMBER = re.compile(
    rf"(?<![\d.,:/-])(\d{{1,12}}) ?(?:/|of) ?(\d{{1,12}})(?![\w%/]|\.\d)"  # 370/1000
    rf"|(?<![\w.])({_FRACTION})(?![\w%]|\.\d){_UNIT}"  # 0.53
    rf"|(?<![\d.,/-])(?<!\d:)(\d{{1,12}})(?![\w%]|\.\d|,\d\d\d){_UNIT}"  # 120
    r"|\d+"
)
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_]*(?:/s\b)?")
#   {"step": 120, "loss": 0.53}   {'iteration': '3/12', 'loss': tensor(0.5)}
_JSON = re.compile(
    rf"[\"']([^\"'\\]{{1,60}})[\"']\s?:\s?[\"']?(?:tensor\(|np\.float(?:32|64)\()?"
    rf"(?:(\d{{1,12}}) ?/ ?(\d{{1,12}})|({_FRACTION})|(\d{{1,12}}))(?=[\"',\s}})])"
)
#   step=120 | loss=0.53   level=info epoch=2, lr=1e-5
_PAIR = re.compile(
    rf"(?:^|[\s,|;(\[])([A-Za-z_][\w./-]{{0,40}})=(?:(\d{{1,12}})/(\d{{1,12}})|({_FRACTION})|(\d{{1,12}}))(?=[\s,|;)\]]|$)"
)
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,300}\|?")


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number that may count something; `total` is 0 where none is beside it."""

    key: tuple[str, int]
    name: str  # the word before it; "" where there is none
    value: int
    total: int


@dataclass(frozen=True, slots=True)
class Value:
    """A fraction that is no clock, rate or size; `unit` is that of its last digit."""

    key: str
    value: float
    unit: float


@dataclass(frozen=True, slots=True)
class Line:
    template: str
    rank: int | None  # as the line itself says
    counts: tuple[Count, ...]
    values: tuple[Value, ...]
    drawn: bool  # as a progress bar with its percentage


def read(text: str) -> Line | None:
    """None for a line that counts nothing.

    >>> line = read("[rank0] iter 120 | loss 0.53, 1.2 it/s")
    >>> line.rank, line.counts[0].name, line.counts[0].value, line.values[0].value
    (0, 'iter', 120, 0.53)
    """
    text = text[:_MOST_CHARS]
    if _DIGIT.search(text) is None:
        return None
    rank = _RANK.search(text)
    if rank is not None:
        text = text[: rank.start()] + " " + text[rank.end() :]
    text = CLOCK.sub(" ", text)
    drawn = 0
    if "/" in text:
        text = _RATE.sub(" ", text)
    if "%|" in text:
        text, drawn = _BAR.subn(" % ", text, count=1)
    named = None if drawn else _named(text)
    if named is None and ("/" in text or text.count(".") > 2):
        text = _PATH.sub("/", text)
    template, counts, values = named or _in_place(text)
    if not counts:
        return None
    return Line(template, None if rank is None else int(rank[1]), tuple(counts), tuple(values), drawn > 0)


def _named(text: str) -> tuple[str, list[Count], list[Value]] | None:
    """Of a line that names its numbers by keys."""
    begin = text.find("{")
    pairs = list(_JSON.finditer(text, begin)) if begin >= 0 else []
    kind = "{"
    if not pairs:
        kind, pairs = "=", list(_PAIR.finditer(text))
        if len(pairs) < 2:
            return None
        begin = pairs[0].start()
    counts: list[Count] = []
    values: list[Value] = []
    for match in pairs[:_MOST_SLOTS]:
        name, done, total, fraction, whole = match.groups()
        if name.endswith(("/s", "_per_second", "_per_sec")):
            continue
        if fraction is not None:
            values.append(_value(name, fraction))
        else:
            count, of = int(done or whole), int(total or 0)
            counts.append(Count((name, of), name, count, of))
    keys = ",".join(sorted({match[1] for match in pairs[:_MOST_SLOTS]}))
    return f"{kind}{keys} {_words(re.sub(r'[0-9]+', '#', text[:begin]))}", counts, values


def _in_place(text: str) -> tuple[str, list[Count], list[Value]]:
    """Of any other line: a slot is the n-th number of its template."""
    parts: list[str] = []
    counts: list[Count] = []
    values: list[Value] = []
    at = 0
    for place, match in enumerate(_NUMBER.finditer(text)):
        between = text[at : match.start()]
        at = match.end()
        parts += (between, "#")
        if place >= _MOST_SLOTS:
            continue
        done, total, fraction, whole = match.groups()
        if done or whole:
            word = _name(between)
            of = int(total or 0)
            if not word.endswith("/s"):
                counts.append(Count((str(place), of), word, int(done or whole), of))
        elif fraction and not _name(between).endswith("/s"):
            values.append(_value(str(place), fraction))
    parts.append(text[at:])
    return _words("".join(parts)), counts, values


def _words(text: str) -> str:
    return BETWEEN.sub(" ", text.replace("#", " 0 ")).strip()


def _name(between: str) -> str:
    """The last word; what stands before a bar's percentage is the bar's name and counts nothing."""
    words = _WORD.findall(between.rpartition("%")[2])
    return words[-1] if words else ""


def _value(key: str, text: str) -> Value:
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    # As text: `**` raises for 1.5e999, which `float` reads as infinite.
    unit = float(f"1e{int(exponent or 0) - decimals}") if mantissa.lstrip("+-")[:1].isdigit() else 0.0
    return Value(key, float(text), unit)
