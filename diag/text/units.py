"""Every number that a person reads: bytes, seconds, rates, ratios, ranks, times, paths. Nothing else formats one.

The page has the same rules in `web/format.js`; tests/text/units.json holds both to one table of examples. What a
program reads (JSON, Prometheus, values of flags) stays a raw number.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_LONGEST_RANKS = 60  # characters of a list of scattered ranks
_MOST_DECIMALS = 12
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(r".*/lib(?:64)?/python3(?:\.\d+t?)?/(?:lib-dynload/)?")


# --- sizes and rates


def format_bytes(size: float | None, *, sign: bool = False) -> str:
    """Binary units, three significant digits, no trailing zeros; None is "?".

    >>> [format_bytes(each) for each in (0, 900, 200 << 20, 1.5 * 2**30, 12.5 * 2**30, 1023 << 20, 2**40 - 1)]
    ['0 B', '900 B', '200 MiB', '1.5 GiB', '12.5 GiB', '1023 MiB', '1 TiB']
    >>> format_bytes(3 << 30, sign=True), format_bytes(-(3 << 30)), format_bytes(None)
    ('+3 GiB', '-3 GiB', '?')
    """
    if size is None or not math.isfinite(size):
        return "?"
    amount, unit = abs(size), 0
    # What would be rounded to 1024 of a unit is 1 of the next.
    while amount >= 1023.5 and unit < len(_BYTES) - 1:
        amount, unit = amount / 1024, unit + 1
    lead = "-" if size < 0 else "+" if sign and size > 0 else ""
    return f"{lead}{_digits(amount, 3)} {_BYTES[unit]}"


def format_rate(bytes_per_second: float | None) -> str:
    """
    >>> format_rate(48 << 20), format_rate(None)
    ('48 MiB/s', '?/s')
    """
    return f"{format_bytes(bytes_per_second)}/s"


def format_link_rate(bytes_per_second: float) -> str:
    """What a port can carry, in bits as ibstat, ethtool and data sheets have it.

    >>> format_link_rate(50e9), format_link_rate(1.25e8), format_link_rate(12.5e6)
    ('400 Gbit/s', '1 Gbit/s', '100 Mbit/s')
    """
    bits = bytes_per_second * 8
    return f"{_digits(bits / 1e9, 3)} Gbit/s" if bits >= 9.995e8 else f"{_digits(bits / 1e6, 3)} Mbit/s"


# --- numbers


def format_number(value: float) -> str:
    """Three significant digits, whole numbers from 1000 on.

    >>> [format_number(each) for each in (0, 0.0123, 1.23456, 12.25, 12345.6, 7.6e9, -2)]
    ['0', '0.0123', '1.23', '12.3', '12346', '7.6e+9', '-2']
    """
    if not math.isfinite(value):
        return "-"
    if value < 0:
        return f"-{format_number(-value)}"
    if 0.001 <= value < 999_999.5 or value == 0:
        return _digits(value, 3)
    power = math.floor(math.log10(value))
    text = _digits(value * 10.0**-power if power < 0 else value / 10.0**power, 3)
    if text == "10":
        power, text = power + 1, "1"
    return f"{text}e{power:+d}"


def format_quantity(value: float, unit: str) -> str:
    """What a sensor reads, in whole units.

    >>> format_quantity(652.4, "W"), format_quantity(1410.0, "MHz"), format_quantity(83.5, "°C")
    ('652 W', '1410 MHz', '84 °C')
    """
    return f"{math.floor(value + 0.5)} {unit}" if math.isfinite(value) else f"? {unit}"


def format_magnitude(number: float) -> str:
    """Parameters and values of a model, as their names have them.

    >>> format_magnitude(7.62e9), format_magnitude(494_032_768), format_magnitude(7.5e7), format_magnitude(900)
    ('7.62B', '494M', '75M', '900')
    """
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if number >= 0.9995 * size:
            return _digits(number / size, 3) + letter if math.isfinite(number) else "?"
    return f"{number:.0f}"


def format_ratio(ratio: float) -> str:
    """Percent: whole, two digits below ten. Only nothing is 0 %, and only all of it is 100 %.

    >>> [format_ratio(each) for each in (0, 0.000001, 0.004, 0.0345, 0.5, 0.9996, 1, 1.25)]
    ['0 %', '<0.01 %', '0.4 %', '3.5 %', '50 %', '99.9 %', '100 %', '125 %']
    """
    percent = ratio * 100
    if not math.isfinite(percent):
        return "?"
    if 0 < percent < 0.01:
        return "<0.01 %"
    if 99.5 <= percent < 100:
        return f"{_digits(min(percent, 99.9), 3)} %"
    return f"{_digits(percent, 2) if 0 < percent < 10 else math.floor(percent + 0.5)} %"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """
    >>> format_count(1, "rank"), format_count(1234, "line"), format_count(2, "try", "tries")
    ('1 rank', '1,234 lines', '2 tries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def ranks_on_nodes(ranks: int, nodes: int) -> str:
    """Those of a node, and of how many nodes.

    >>> ranks_on_nodes(8, 1), ranks_on_nodes(8, 2)
    ('8 ranks on 1 node', '8 ranks on each of 2 nodes, 16 in all')
    """
    if nodes == 1:
        return f"{format_count(ranks, 'rank')} on 1 node"
    return f"{format_count(ranks, 'rank')} on each of {nodes:,} nodes, {ranks * nodes:,} in all"


def compact(text: str) -> str:
    """A formatted number as cells of a table have it, where each column counts: without its space, and of a unit
    the first letter.

    >>> compact("2.53 GiB"), compact("48 %"), compact("12 s"), compact("1 min 22 s"), compact("?")
    ('2.5G', '48%', '12s', '1m22s', '?')
    """
    short = re.sub(r" ([KMGTPE])iB\b", r"\1", re.sub(r"(\d\.\d)\d(?= [KMGTPE]iB)", r"\1", text))
    return re.sub(r"(?<=\d) ?(%|µs|ms|[smhdB])(?:in)?\b ?", r"\1", short.replace(" %", "%")).rstrip()


def _digits(value: float, figures: int) -> str:
    """So many significant digits and all of those before the point; halves go up, as in the page's JavaScript."""
    scale, decimals = 1, 0
    while 0 < value * scale < 10 ** (figures - 1) and decimals < _MOST_DECIMALS:
        scale, decimals = scale * 10, decimals + 1
    text = f"{math.floor(value * scale + 0.5) / scale:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


# --- times


def format_seconds(seconds: float | None) -> str:
    """How long something took or lasts; None is "?".

    >>> [format_seconds(each) for each in (0.00042, 0.052, 0.64, 4.26, 12.4, 100, 1872, 7500, 7200, 180_000)]
    ['420 µs', '52 ms', '0.64 s', '4.3 s', '12 s', '1 min 40 s', '31 min', '2 h 5 min', '2 h', '2 d 2 h']
    """
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if 0 < seconds < 0.1:
        return f"{_digits(seconds * 1e6, 3)} µs" if seconds < 0.0009995 else f"{_digits(seconds * 1e3, 3)} ms"
    if seconds < 10:
        return f"{_digits(seconds, 2)} s"
    whole = math.floor(seconds + 0.5)
    if whole >= _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole >= _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "min")
    if whole >= 10 * _MINUTE:
        return f"{whole // _MINUTE} min"
    return _two(whole, _MINUTE, "min", 1, "s") if whole >= _MINUTE else f"{whole} s"


def _two(whole: int, large: int, name: str, small: int, other: str) -> str:
    rest = whole % large // small
    return f"{whole // large} {name}" + (f" {rest} {other}" if rest else "")


# Of the times of a log that has none: it has a 29 February, and no machine's clock is there.
NO_YEAR = 1972
_NO_YEAR_SECONDS = (725.0 * 86400, 1100.0 * 86400)  # a day around it for the zones, and January of the next


# What is before it is no date of a log: its lines have none, and are counted.
EARLIEST_DATED = _NO_YEAR_SECONDS[0]


def format_time(at: float, now: float | None = None) -> str:
    """A moment in this machine's zone, without the year of a time that has none (`NO_YEAR`); the time of day is enough on
    the day of `now`.

    >>> import os, time; os.environ["TZ"] = "UTC"; time.tzset()
    >>> format_time(1000.0), format_time(1000.0, 2000.0), format_time(1e30), format_time(64e6)
    ('1970-01-01 00:16:40', '00:16:40', '1000000000000000019884624838656', '01-11 17:46:40')
    """
    try:
        moment = datetime.fromtimestamp(at)
        same_day = now is not None and datetime.fromtimestamp(now).date() == moment.date()
    except (OverflowError, OSError, ValueError):  # a time that a broken capture made up
        return f"{at:.0f}"
    if same_day:
        return moment.strftime("%H:%M:%S")
    bare = _NO_YEAR_SECONDS[0] <= at < _NO_YEAR_SECONDS[1]
    return moment.strftime("%m-%d %H:%M:%S" if bare else "%Y-%m-%d %H:%M:%S")


# --- ranks and paths


def format_ranges(numbers: Iterable[int], *, longest: int = _LONGEST_RANKS) -> str:
    """Of many scattered ones the first and how many there are.

    >>> format_ranges([0, 1, 2, 4, 6, 7]), format_ranges([0, 1, 2, 4, 6, 7], longest=8)
    ('0-2, 4, 6-7', '0-2, 4, ... (6 of them)')
    """
    numbers = set(numbers)
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    text = ", ".join("-".join(map(str, ends)) for ends in ranges)
    if len(text) > longest:
        text = f"{text[: max(0, text.rfind(', ', 0, longest))]}, ... ({len(numbers)} of them)"
    return text


def format_ranks(ranks: Sequence[int], *, noun: str = "rank", longest: int = _LONGEST_RANKS) -> str:
    """
    >>> format_ranks([3]), format_ranks([0, 1, 2, 3, 7]), format_ranks([5], noun="node")
    ('rank 3', 'ranks 0-3, 7', 'node 5')
    >>> format_ranks(range(0, 16384, 2))
    'ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, ... (8192 of them)'
    """
    return f"{noun if len(set(ranks)) == 1 else noun + 's'} {format_ranges(ranks, longest=longest)}"


@functools.lru_cache(maxsize=8192)
def is_standard_library(path: str) -> bool:
    """By where interpreters install it.

    >>> [is_standard_library(f"/usr/lib/python3.12/{file}") for file in ("selectors.py", "site-packages/a.py")]
    [True, False]
    """
    return _STANDARD_LIBRARY.match(path) is not None and _PACKAGE.match(path) is None


def format_path(path: str, folder: str = "") -> str:
    """A file of code as a person opens it: from `folder` on, the job's working directory, where it lies below that,
    and whole elsewhere. Of an installed package and of the standard library what an import would name, without where
    this machine has them.

    >>> format_path("/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py")
    'torch/utils/data/dataloader.py'
    >>> format_path("/usr/lib/python3.10/threading.py"), format_path("/home/me/job/src/data/shards.py")
    ('threading.py', '/home/me/job/src/data/shards.py')
    >>> format_path("/home/me/job/src/data/shards.py", "/home/me/job"), format_path("/home/me/job2/x.py", "/home/me/job")
    ('src/data/shards.py', '/home/me/job2/x.py')
    """
    for installed in (_PACKAGE, _STANDARD_LIBRARY):
        found = installed.match(path)
        if found:
            return path[found.end() :]
    # Below "/" lies everything: a path from there on would only look like one of the working directory.
    below = folder.rstrip("/")
    return path[len(below) + 1 :] if below and path.startswith(f"{below}/") else path
