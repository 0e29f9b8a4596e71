"""The times that a log's lines carry, as one clock that never goes back: zones apart, torn and odd ones left
out."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from diag.knowledge.log_prefix import strip_outer
from diag.text.units import NO_YEAR

_MOST_CHARS = 120  # of a line: a time is at its beginning
# ms-swift, DeepSpeed, Megatron-LM, logging.Formatter; glog and torch's own (no year); mmengine; transformers'
# examples:
#   [2026-11-20 22:48:19,123] [INFO] ...     [INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170
#   [rank1]:[E1120 22:48:50.873733582 ProcessGroupNCCL.cpp:1628] ...     E1121 00:37:02.756000 20337 torch/...
#   2026/04/01 12:00:00 - mmengine - INFO - ...     11/21/2026 10:00:00 - INFO - __main__ - ...
# The table of torchelastic has an underscore:   time      : 2026-11-21_00:37:02
# MLPerf's scripts have date(1)'s twelve hours:   STARTING TIMING RUN AT 2026-04-01 10:12:16 PM
_STAMP = re.compile(
    r"(?<!\d)(?:(?P<y>20\d\d)[-/](?P<m>\d\d)[-/](?P<d>\d\d)[ T_](?P<t>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r"|(?<!\w)[DVIWEFC](?P<gm>\d\d)(?P<gd>\d\d) (?P<gt>\d\d:\d\d:\d\d\.\d{1,9})"
    r"|(?P<um>\d\d)/(?P<ud>\d\d)/(?P<uy>20\d\d) (?P<ut>\d\d:\d\d:\d\d))(?!\d)(?P<half> ?[AaPp][Mm]\b)?"
)
_SAME_SECONDS = 600.0  # clocks of one job are not further apart; more is another zone, or time that passed
_ZONE_SECONDS, _ZONE_SLACK_SECONDS = 1800.0, 60.0  # zones are half hours apart
_LARGEST_ZONE_SECONDS = 26 * 3600.0
_CONFIRM_SECONDS = 600.0  # a leap of days is believed when the next line has nearly the same


# What tells the year of times that have none: other times (of the same day), and glog's words for the moment of a crash:
#   *** Aborted at 1763671699 (unix time) try "date -d @1763671699" if you are using GNU date ***
_WITH_YEAR = re.compile(rb"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[ T_]\d\d:\d\d:\d\d")
_WITHOUT_YEAR = re.compile(rb"(?<!\w)[DVIWEFC](\d\d)(\d\d) \d\d:\d\d:\d\d\.\d")
_UNIX = re.compile(rb"Aborted at (1\d{9}) \(unix time\)")
_NEAR_DAYS = 2  # zones, and a job that began the day before


def year_of(text: bytes) -> int | None:
    """Of the times without a year in these lines; None where no other time tells it.

    >>> year_of(b"W1120 22:48:19.123456 7 a.cc:1] no\\n2024-11-20 22:48:19 - INFO - step 1\\n"), year_of(b"W1120 22:48:19.123456 7 a")
    (2024, None)
    """
    bare = _WITHOUT_YEAR.search(text)
    if bare is None:
        return None
    known = [(int(year), int(month), int(day)) for year, month, day in _WITH_YEAR.findall(text)]
    for seconds in _UNIX.findall(text):
        moment = datetime.fromtimestamp(int(seconds), timezone.utc)
        known.append((moment.year, moment.month, moment.day))
    for year, month, day in known:
        try:
            apart = datetime(year, month, day) - datetime(year, int(bare[1]), int(bare[2]))
        except ValueError:
            continue
        if abs(apart.days) <= _NEAR_DAYS:
            return year
    return None


class LineTimes:
    """Given each line in order; `at` is when it was written, None before the first that has a time. `year`: of times that
    have none; None where it is not known, then all times are of the year `NO_YEAR`."""

    def __init__(self, year: int | None) -> None:
        self.at: float | None = None
        self.first: float | None = None
        self._year = NO_YEAR if year is None else year
        self._yearless = False  # the first time had no year, and it is not known
        self._year_is_known = year is not None
        self._outer = False  # what is before each line is the one clock
        self._shift: dict[str, float] = {}  # of each kind of time against the first that was seen
        self._leap: float | None = None
        self._last_text = ""
        self._last_epoch: float | None = None

    def read(self, text: str) -> bool:
        """Whether the line has a time that moved the clock."""
        if text.count(":", 0, _MOST_CHARS) < 2:
            return "(unix time)" in text and self._crashed(text)
        outer = (
            strip_outer(text).at
            if text[:2] == "20" or text[:1] in "[ \x1b0123456789" or self._outer
            else None
        )
        if outer is not None:
            self._outer = True
            return self._take("outer", outer)
        if self._outer:
            return False
        match = _STAMP.search(text, 0, _MOST_CHARS)
        if match is None:
            return False
        kind = match.lastgroup or ""
        if match[0] != self._last_text:
            self._last_text, self._last_epoch = match[0], self._epoch(match)
        return self._last_epoch is not None and self._take(kind, self._last_epoch)

    def _crashed(self, text: str) -> bool:
        match = _UNIX.search(text[: 2 * _MOST_CHARS].encode("ascii", "replace"))
        return (
            match is not None and not (self._outer or self._yearless) and self._take("unix", float(match[1]))
        )

    def _epoch(self, match: re.Match[str]) -> float | None:
        if self.at is None and match["gm"] and not self._year_is_known:
            self._yearless = True
        year = NO_YEAR if self._yearless else match["y"] or match["uy"] or self._year
        month, day = match["m"] or match["gm"] or match["um"], match["d"] or match["gd"] or match["ud"]
        clock = (match["t"] or match["gt"] or match["ut"]).replace(",", ".")
        try:
            hour, minute, second = int(clock[:2]), int(clock[3:5]), int(clock[6:8])
            if match["half"] and hour <= 12:
                hour = hour % 12 + (12 if match["half"].strip()[0] in "Pp" else 0)
            whole = datetime(int(year), int(month), int(day), hour, minute, second, tzinfo=timezone.utc)
        except ValueError:
            return None
        found = whole.timestamp() + (float("0" + clock[8:]) if len(clock) > 9 else 0.0)
        if match["gm"] and self.at is not None and found < self.at - 180 * 86400:
            return whole.replace(year=whole.year + 1).timestamp()  # the year is over
        if not match["gm"] and not self._yearless:
            self._year = whole.year
        return found

    def _take(self, kind: str, stamp: float) -> bool:
        if self.at is None or self.first is None:
            self.at = self.first = stamp
            self._shift[kind] = 0.0
            return True
        if kind not in self._shift:
            self._shift[kind] = _zone(stamp - self.at)
        stamp -= self._shift[kind]
        if stamp < self.at:
            if self.at - stamp > _SAME_SECONDS:
                self._leap = None
            return False
        if stamp - self.at > _LARGEST_ZONE_SECONDS and (
            self._leap is None or not 0 <= stamp - self._leap < _CONFIRM_SECONDS
        ):
            self._leap = stamp  # a date in the data, a torn line; or the log went on days later
            return False
        moved, self.at, self._leap = stamp > self.at, stamp, None
        return moved


def _zone(ahead: float) -> float:
    """By how much another kind of time is of another zone; 0.0 for time that passed.

    >>> _zone(8 * 3600 + 1.5), _zone(-7 * 3600 + 40), _zone(3712.0), _zone(-3.0)
    (28800.0, -25200.0, 0.0, 0.0)
    """
    near = round(ahead / _ZONE_SECONDS) * _ZONE_SECONDS
    if abs(ahead) < _SAME_SECONDS or abs(ahead) > _LARGEST_ZONE_SECONDS:
        return 0.0
    return near if ahead < 0 or abs(ahead - near) < _ZONE_SLACK_SECONDS else 0.0
