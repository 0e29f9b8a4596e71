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


_ONE = {"a rank": "某个 rank", "a process": "某个进程"}  # of an excerpt that does not tell which


def _ranks(text: str) -> str:
    """
    >>> _ranks("Ranks 0-2, 7"), _ranks("rank 3 (pid 81)"), _ranks("all 8 ranks seen"), _ranks("the job")
    ('rank 0-2, 7', 'rank 3 (pid 81)', '已看到的全部 8 个 rank', '任务')
    >>> _ranks("A rank"), _ranks("a process")
    ('某个 rank', '某个进程')
    """
    if text.lower() in _ONE:
        return _ONE[text.lower()]
    if text.lower() in ("the job", "the only rank seen"):
        return "任务" if "job" in text else "唯一看到的 rank"
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


def _command(text: str) -> str:
    """
    >>> _command("Process 88 (`sh up.sh`)"), _command("another process"), _command("pid 7 (`ls`)")
    ('进程 88 (`sh up.sh`)', '另一个进程', 'pid 7 (`ls`)')
    """
    return _WORDS.get(text.lower()) or re.sub(r"^[Pp]rocess (?=\d)", "进程 ", text)


def _doer(text: str) -> str:
    """Who waits, holds or sleeps: ranks, a process, a thread.

    >>> _doer("Rank 1"), _doer("process 88"), _doer("Thread up (tid 9)"), _doer("the thread with tid 9")
    ('rank 1', '进程 88', '线程 up (tid 9)', '线程 tid 9')
    """
    if with_tid := re.fullmatch(r"[Tt]he thread with (tid \d+)", text):
        return f"线程 {with_tid[1]}"
    lowered = text[:1].lower() + text[1:]
    return _what(lowered) if lowered.startswith(("thread ", "the main", "child ")) else _command(_ranks(text))


def _parties(text: str) -> str:
    """
    >>> _parties("child pid 9 (`sh up.sh`) or a child of rank 3 (pid 7) or 2 more")
    '子进程 pid 9 (`sh up.sh`) 或 rank 3 (pid 7) 的子进程，或另外 2 个'
    >>> _parties("thread up (tid 9) of child pid 9"), _parties("the same process")
    ('子进程 pid 9 的线程 up (tid 9)', '它自己')
    """
    shown = []
    for party in text.split(" or "):
        thread, _, process = party.partition(" of ") if party.startswith("thread ") else (party, "", "")
        if more := re.fullmatch(r"(\d+) more", party):
            shown.append(f"另外 {more[1]} 个")
        elif party.startswith("a child of "):
            shown.append(f"{party.removeprefix('a child of ')} 的子进程")
        else:
            shown.append((f"{_what(process)} 的" if process else "") + _PARTIES.get(party, _what(thread)))
    last = "，或" if len(shown) > 1 and shown[-1].startswith("另外") else " 或 "
    joined = last.join(filter(None, (" 或 ".join(shown[:-1]), shown[-1])))
    return re.sub(" 或 (?=[\u4e00-\u9fff])", " 或", joined)


_PARTIES = {
    "the same process": "它自己", "a thread": "某个线程", "a child": "子进程", "a child process": "子进程",
}  # fmt: skip


def _calls(text: str) -> str:
    """
    >>> _calls("ranks 0, 2 call all_reduce [8], rank 1 calls broadcast [8]")
    'rank 0, 2 调用 all_reduce [8]，rank 1 调用 broadcast [8]'
    >>> _calls("rank 0 calls barrier and is in main (a.py:3), rank 1 calls broadcast [8]")
    'rank 0 调用 barrier，停在 main (a.py:3)，rank 1 调用 broadcast [8]'
    """
    called = re.sub(rf"[Rr]anks? ({_LIST}) calls? ", r"rank \1 调用 ", text)
    called = re.sub(r" and (?:is|are) in (?=\S+ \()", "，停在 ", called)
    return re.sub(r", (?=rank )", "，", called)


def _in_calls(text: str) -> str:
    """
    >>> _in_calls("rank 1 in all_reduce 7 of default_pg, rank 2 in barrier 3 of tp_0")
    'rank 1 在 default_pg 的 all_reduce 7，rank 2 在 tp_0 的 barrier 3'
    """
    return re.sub(r"(rank \d+) in (\w+ \d+) of ([^,]+)", r"\1 在 \3 的 \2", text).replace(", rank", "，rank")


def _call(text: str) -> str:
    """
    >>> _call("all_reduce 12 of default_pg and barrier 3 of tp_0"), _call("another one")
    ('default_pg 的 all_reduce 12 和 tp_0 的 barrier 3', '另一个调用')
    >>> _call("all_reduce 5 of group 1 of ranks 0-1")
    'group 1（rank 0-1）的 all_reduce 5'
    """
    known = {"a call": "某次调用", "another one": "另一个调用"}
    shown = re.sub(rf"(\w+ \d+) of (group \S+) of ranks? ({_LIST})", r"\2（rank \3）的 \1", text)
    shown = re.sub(r"(\w+ \d+) of (\S+)", r"\2 的 \1", shown)
    return known.get(text) or shown.replace(" and ", " 和 ").replace(" or ", " 或 ")


_EACH_WORDS = (
    (" not known where", " 位置不明"), (" at the line itself", " 就在这一行"),
    (r" from DataLoader worker pid (\d+)", r" 等 DataLoader worker pid \1"),
    (r" for its child process (\d+)", r" 等子进程 pid \1"), (r" whose writer is pid (\d+)", r" 的写进程 pid \1"),
    (", which is blocked on a lock", "，后者等锁阻塞"), (", which is blocked", "，后者阻塞"),
    (r", which is busy at ([\d.<]+ %) CPU", r"，后者在忙，占 \1 CPU"), (", which is busy", "，后者在忙"),
    (", which is not blocked", "，后者还在跑"), (r", which is awake (\d+) times a second", r"，后者每秒醒 \1 次"),
)  # fmt: skip


def _exits(text: str) -> str:
    """
    >>> _exits("ranks 0, 2 exit code 1, rank 1 killed by signal 9"), _exits("gone")
    ('rank 0, 2 退出码 1，rank 1 被信号 9 杀死', '进程已不在')
    """
    shown = (
        text.replace("exit code unknown", "退出码未知")
        .replace("exit code", "退出码")
        .replace("gone", "进程已不在")
    )
    shown = re.sub(r"killed by signal (\d+)", r"被信号 \1 杀死", _each_place(shown))
    return shown


def _exchange(text: str) -> str:
    """
    >>> _exchange("rank 1 waits to receive from rank 2, which waits to send to rank 1 (tag 3)")
    'rank 1 等着从 rank 2 接收，而它等着发给 rank 1 (tag 3)'
    """
    shown = text.replace(", which waits to ", "，而它等着").replace(" waits to ", " 等着")
    return re.sub(r"receive from (rank \d+)", r"从 \1 接收", shown.replace("send to rank", "发给 rank"))


def _each_place(text: str) -> str:
    """Of ranks that are not at one place.

    >>> _each_place("rank 0 in f (a.py:3), inside g (b.py:4), ranks 1-2 not known where")
    'rank 0 在 f（a.py:3），内层 g（b.py:4），rank 1-2 位置不明'
    >>> _each_place("rank 0 for its child process 80, which is blocked in f (a.py:3), rank 1 from DataLoader worker pid 81")
    'rank 0 等子进程 pid 80，后者阻塞 在 f（a.py:3），rank 1 等 DataLoader worker pid 81'
    >>> _each_place("rank 0 inside g (b.py:4), rank 1 at the line itself and 3 more ranks")
    'rank 0 内层 g（b.py:4），rank 1 就在这一行，另有 3 个 rank'
    """
    shown = re.sub(rf"[Rr]anks? ({_LIST})", r"rank \1", text)
    shown = re.sub(r" and (\d+) more ranks?$", r"，另有 \1 个 rank", shown)
    for english, chinese in _EACH_WORDS:
        shown = re.sub(english, chinese, shown)
    shown = re.sub(rf"(rank {_LIST}|的?(?:pid|进程) \d+|阻塞|在忙|CPU|在跑|\d 次) in ", r"\1 在 ", shown)
    shown = re.sub(rf"(rank {_LIST}) inside ", r"\1 内层 ", shown)
    return _place(shown).replace(", rank", "，rank")


_PROSE = re.compile(r"(?:\b[a-z]{2,}\b[ ,]+){3}")


def _name(text: str) -> str | None:
    """A free place holds a name or a list of them: words of the sentence around it are none.

    >>> _name("mlx5_0:1, mlx5_1:1"), _name("default_pg after some steps were made")
    ('mlx5_0:1, mlx5_1:1', None)
    """
    return None if _PROSE.search(text) else _WORDS.get(text.lower(), text)


# What stands where nothing is known of it.
_WORDS = {
    "a process": "某个进程", "another process": "另一个进程", "another thread": "另一个线程", "the other side": "对端",
    "the file shown": "所示的文件", "a value": "某个值", "a socket": "某个 socket",
}  # fmt: skip
_FREE = Kind(r"[^;]+", _name, open_ended=True)
ANYTHING = Kind(r".+", open_ended=True)  # quoted lines, errors
LOOSE = Kind(r".*", open_ended=True)  # in Chinese where it has any; may be empty
_AT = r"[\w.<>]+(?: \((?:from [^(),]+, )?[^()]+\))?"
_CODE = r"[\w.<>]+ \((?:from [^(),]+, )?[^()]+\)"
_RANKS = Kind(
    rf"(?:[Rr]anks?|[Nn]odes?) {_LIST}{_PID}|[Tt]he job|[Aa] rank|[Aa] process|[Tt]he only rank seen|[Aa]ll \d+ ranks seen",
    _ranks,
)
_CHILD = (
    r" (?:from DataLoader worker pid|for its child process|whose writer is pid) \d+"
    r"(?:, which is (?:blocked on a lock|blocked|busy at [\d.<]+ % CPU|busy|not blocked|awake \d+ times a second))?"
)
_AT_EACH = (
    rf"(?:{_CHILD}(?: in {_AT}(?:, inside {_AT})?)?| in {_AT}(?:, inside {_AT})?| inside {_AT}| at the line itself"
    r"| not known where)"
)
_EACH = rf"[Rr]anks? {_LIST}{_AT_EACH}"
_EXCHANGE = r"waits to (?:send to|receive from) rank \d+(?: \(tag \d+\))?"
_IN_CALL = r"rank \d+ in \w+ \d+ of [^,()]+"
_WHAT = r"(?:child )?pid \d+(?: \(`[^`]*`\))?|thread \S+ \(tid \d+\)|the main thread|rank \d+ \(pid \d+\)"
_OF_GROUP = rf"\w+ \d+ of (?:group \S+ of ranks? {_LIST}|[^\s,;()]+)"
_EXIT = r"(?:exit code (?:\d+|unknown)|killed by signal \d+|gone)"
_PARTY = (
    r"(?:(?:a child of )?rank \d+ \(pid \d+\)|(?:child )?pid \d+(?: \(`[^`]*`\))?|the main thread|the same process|\d+ more"
    r"|thread .+? \(tid \d+\)(?: of (?:child )?pid \d+(?: \(`[^`]*`\))?)?|a thread|a child|a child process)"
)
KINDS = {
    "ranks": _RANKS,
    "who": _RANKS,
    "victims": _RANKS,
    "culprits": _RANKS,
    "span": Kind(rf"(?:[Aa]t least )?{_SPAN}", _span),
    "n": Kind(r"\d[\d,.]*|PID"),
    "size": Kind(r"[\d.]+ (?:B|KiB|MiB|GiB|TiB|PiB)"),
    "time": Kind(r"(?:(?:\d{4}-)?\d\d-\d\d )?\d\d:\d\d:\d\d"),
    "ratio": Kind(r"<?[\d.]+ %"),
    "where": Kind(rf"{_AT}(?:, inside {_AT})?,?", _place),
    "at": Kind(rf"{_CODE}(?:, inside {_CODE})?,?", _place),
    "what": Kind(_WHAT, _what),
    "doer": Kind(
        rf"{_RANKS.pattern}|[Pp]rocess \d+(?: \(`[^`]*`\))?|{_WHAT}|[Tt]hread .+ \(tid \d+\)|[Tt]he main thread"
        r"|[Tt]he thread with tid \d+|[Aa]nother (?:thread|process)|[Aa] process",
        _doer,
    ),
    "parties": Kind(rf"{_PARTY}(?: or {_PARTY})*", _parties),
    "call": Kind(rf"{_OF_GROUP}(?: (?:and|or) {_OF_GROUP})?|a call|another one", _call),
    "exits": Kind(
        rf"{_EXIT}|[Rr]anks? {_LIST} {_EXIT}(?:, [Rr]anks? {_LIST} {_EXIT})*(?: and \d+ more ranks?)?", _exits
    ),
    "calls": Kind(r"[^;]+", _calls, open_ended=True),
    "callers": Kind(rf"[Rr]anks? {_LIST} calls? [^;]+", _calls, open_ended=True),
    "incalls": Kind(rf"{_IN_CALL}(?:, {_IN_CALL})*", _in_calls),
    "exchange": Kind(rf"rank \d+ {_EXCHANGE}(?:, which {_EXCHANGE})*", _exchange),
    "places": Kind(rf"{_EACH}(?:, {_EACH})*(?: and \d+ more ranks?)?", _each_place),
    "group": Kind(r"[^\s()]+(?: \d+)?"),
    "variable": Kind(r"[A-Z][A-Z0-9_]*(?:=\S*)?"),
    "line": ANYTHING,
    "error": ANYTHING,
    "reason": ANYTHING,
    "command": Kind(ANYTHING.pattern, _command, open_ended=True),
    "clause": ANYTHING,
    "id": Kind(r"[a-z][a-z0-9-]*(?: \([a-z_]+\))?"),
    "word": Kind(r"[^\s,;:]+"),
    # A verb that follows the number of ranks: Chinese has one form.
    "wait": Kind(r"waits?"),
    "have": Kind(r"has|have"),
    "waited": Kind(r"calls?"),
    "above": Kind(r"(?: \(above\))?", lambda text: "（见上）" if text else ""),
}
CLAUSE = "clause"  # a place of what is a template's itself
COUNT = "n"
SILENT = frozenset({"wait", "have", "waited"})  # may be left out


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
