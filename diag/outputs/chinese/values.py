"""Values in sentences: which text a place of a template may hold, how it reads in Chinese, and what of a sentence may
not get lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_LIST = r"\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*(?:, \.\.\. \(\d+ of them\))?"
_PID = r"(?: \(pid \d+\))?"
_SPAN = r"-?[\d.]+ (?:µs|ms|s|min|h|d)(?: \d+ (?:s|min|h))?"
_UNITS = {"µs": "微秒", "ms": "毫秒", "s": "秒", "min": "分", "h": "小时", "d": "天"}


@dataclass(frozen=True, slots=True)
class Kind:
    """`pattern` is RE2's; `render` gives the Chinese, None where there is none."""

    pattern: str
    render: Callable[[str], str | None] = str
    open_ended: bool = False  # where it ends follows from what comes after it


def _ranks(text: str) -> str:
    """
    >>> _ranks("Ranks 0-2, 7"), _ranks("rank 3 (pid 81)"), _ranks("all 8 ranks seen"), _ranks("the job")
    ('rank 0-2, 7', 'rank 3 (pid 81)', '已看到的全部 8 个 rank', '任务')
    """
    if text.lower() == "the job":
        return "任务"
    if text.startswith(("all ", "All ")):
        return f"已看到的全部 {text.split()[1]} 个 rank"
    named = re.sub(r"^[Rr]anks?", "rank", re.sub(r"^[Nn]odes?", "节点", text))
    return re.sub(r"\.\.\. \((\d+) of them\)", r"…（共 \1 个）", named)


def _span(text: str) -> str:
    """
    >>> _span("1 min 40 s"), _span("at least 29 s"), _span("52 ms")
    ('1 分 40 秒', '至少 29 秒', '52 毫秒')
    """
    words = text.removeprefix("at least ").removeprefix("At least ").split()
    least = "至少 " if "least" in text else ""
    return least + " ".join(_UNITS.get(word, word) for word in words)


def _place(text: str) -> str:
    """
    >>> _place("wait (from <module>, train.py:7), inside Popen.wait (subprocess.py:9),")
    'wait（由 <module> 调用，train.py:7），内层 Popen.wait（subprocess.py:9）'
    """
    inner = text.rstrip(",").replace(", inside ", "，内层 ")
    return re.sub(r" \((?:from ([^(),]+), )?([^()]+)\)", _called, inner)


def _called(found: re.Match[str]) -> str:
    return f"（由 {found[1]} 调用，{found[2]}）" if found[1] else f"（{found[2]}）"


def _what(text: str) -> str:
    """
    >>> _what("child pid 7 (`sh up.sh`)"), _what("thread up (tid 9)"), _what("the main thread")
    ('子进程 pid 7 (`sh up.sh`)', '线程 up (tid 9)', '主线程')
    """
    for english, chinese in (("child ", "子进程 "), ("thread ", "线程 "), ("the main thread", "主线程")):
        if text.startswith(english):
            return chinese + text.removeprefix(english)
    return text


_PROSE = re.compile(r"(?:\b[a-z]{2,}\b[ ,]+){3}")


def _name(text: str) -> str | None:
    """A free place holds a name or a list of them: words of the sentence around it are none.

    >>> _name("mlx5_0:1, mlx5_1:1"), _name("default_pg after some steps were made")
    ('mlx5_0:1, mlx5_1:1', None)
    """
    return None if _PROSE.search(text) else text


_FREE = Kind(r"[^;]+", _name, open_ended=True)
ANYTHING = Kind(r".+", open_ended=True)  # quoted lines, errors
LOOSE = Kind(r".*", open_ended=True)  # in Chinese where it has any; may be empty
_AT = r"[\w.<>]+(?: \((?:from [^(),]+, )?[^()]+\))?"
_CODE = r"[\w.<>]+ \((?:from [^(),]+, )?[^()]+\)"
_RANKS = Kind(rf"(?:[Rr]anks?|[Nn]odes?) {_LIST}{_PID}|[Tt]he job|[Aa]ll \d+ ranks seen", _ranks)
KINDS = {
    "ranks": _RANKS,
    "who": _RANKS,
    "victims": _RANKS,
    "culprits": _RANKS,
    "span": Kind(rf"(?:[Aa]t least )?{_SPAN}", _span),
    "n": Kind(r"\d[\d,.]*"),
    "size": Kind(r"[\d.]+ (?:B|KiB|MiB|GiB|TiB|PiB)"),
    "time": Kind(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"),
    "ratio": Kind(r"<?[\d.]+ %"),
    "where": Kind(rf"{_AT}(?:, inside {_AT})?,?", _place),
    "at": Kind(rf"{_CODE}(?:, inside {_CODE})?,?", _place),
    "what": Kind(
        r"(?:child )?pid \d+(?: \(`[^`]*`\))?|thread \S+ \(tid \d+\)|the main thread|rank \d+ \(pid \d+\)",
        _what,
    ),
    "group": Kind(r"[^\s()]+(?: \d+)?"),
    "variable": Kind(r"[A-Z][A-Z0-9_]*(?:=\S*)?"),
    "line": ANYTHING,
    "error": ANYTHING,
    "reason": ANYTHING,
    "command": ANYTHING,
    "clause": ANYTHING,
    "id": Kind(r"[a-z][a-z0-9-]*(?: \([a-z_]+\))?"),
    "word": Kind(r"[^\s,;:]+"),
    # A verb that follows the number of ranks: Chinese has one form.
    "wait": Kind(r"waits?"),
    "have": Kind(r"has|have"),
}
CLAUSE = "clause"  # a place of what is a template's itself
COUNT = "n"
SILENT = frozenset({"wait", "have"})  # may be left out


def kind_of(place: str) -> Kind:
    """By its name without a number: {ranks}, {n2}, {clause}."""
    return KINDS.get(stem(place), _FREE)


def stem(place: str) -> str:
    return place.rstrip("0123456789").lower()


_KEPT = re.compile(
    r"`(?P<code>[^`]+)`|\"(?P<quote>[^\"]+)\"|(?P<path>(?<![\w<])(?:/|--)\w[\w./=-]*\w)"
    r"|(?P<name>\b[A-Z][A-Z0-9]*_[A-Z0-9_]+)|(?P<number>\d+(?:[.,:]\d+)*)"
)


def lost(english: str, chinese: str) -> list[str]:
    """Numbers, paths, options, variables, commands and quoted lines of the English that the Chinese lacks.

    >>> lost("rank 1 (pid 7) reads /data/a.bin", "rank 1 在读 /data/b.bin")
    ['7', '/data/a.bin']
    """
    missing = []
    for found in _KEPT.finditer(english):
        text = found[found.lastgroup or 0]
        if text not in chinese or (
            found.lastgroup == "number" and not re.search(rf"(?<!\d){re.escape(text)}(?!\d)", chinese)
        ):
            missing.append(text)
    return missing
