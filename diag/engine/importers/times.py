"""The times that a log's lines carry, as one clock that never goes back: zones apart, torn and odd ones left
out."""

from __future__ import annotations

import re
from datetime import datetime, timezone

from diag.knowledge.log_prefix import strip_outer

_MOST_CHARS = 120  # of a line: a time is at its beginning
# ms-swift, DeepSpeed, Megatron-LM, logging.Formatter; glog and torch's own (no year); mmengine; transformers'
# examples:
#   [2026-11-20 22:48:19,123] [INFO] ...     [INFO:swift] Start time of running main: 2026-11-20 23:38:14.422170
#   [rank1]:[E1120 22:48:50.873733582 ProcessGroupNCCL.cpp:1628] ...     E1121 00:37:02.756000 20337 torch/...
#   2026/04/01 12:00:00 - mmengine - INFO - ...     11/21/2026 10:00:00 - INFO - __main__ - ...
# The table of torchelastic has an underscore:   time      : 2026-11-21_00:37:02
_STAMP = re.compile(
    r"(?<!\d)(?:(?P<y>20\d\d)[-/](?P<m>\d\d)[-/](?P<d>\d\d)[ T_](?P<t>\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r"|(?<!\w)[DVIWEFC](?P<gm>\d\d)(?P<gd>\d\d) (?P<gt>\d\d:\d\d:\d\d\.\d{1,9})"
    r"|(?P<um>\d\d)/(?P<ud>\d\d)/(?P<uy>20\d\d) (?P<ut>\d\d:\d\d:\d\d))(?!\d)"
)
_SAME_SECONDS = 600.0  # clocks of one job are not further apart; more is another zone, or time that passed
_ZONE_SECONDS, _ZONE_SLACK_SECONDS = 1800.0, 60.0  # zones are half hours apart
_LARGEST_ZONE_SECONDS = 26 * 3600.0
_CONFIRM_SECONDS = 600.0  # a leap of days is believed when the next line has nearly the same


class LineTimes:
    """Given each line in order; `at` is when it was written, None before the first that has a time."""

    def __init__(self, year: int) -> None:
        self.at: float | None = None
        self.first: float | None = None
        self._year = year
        self._outer = False  # what is before each line is the one clock
        self._shift: dict[str, float] = {}  # of each kind of time against the first that was seen
        self._leap: float | None = None
        self._last_text = ""
        self._last_epoch: float | None = None

    def read(self, text: str) -> bool:
        """Whether the line has a time that moved the clock."""
        if text.count(":", 0, _MOST_CHARS) < 2:
            return False
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

    def _epoch(self, match: re.Match[str]) -> float | None:
        year = match["y"] or match["uy"] or str(self._year)
        month, day = match["m"] or match["gm"] or match["um"], match["d"] or match["gd"] or match["ud"]
        clock = (match["t"] or match["gt"] or match["ut"]).replace(",", ".")
        try:
            hour, minute, second = int(clock[:2]), int(clock[3:5]), int(clock[6:8])
            whole = datetime(int(year), int(month), int(day), hour, minute, second, tzinfo=timezone.utc)
        except ValueError:
            return None
        found = whole.timestamp() + (float("0" + clock[8:]) if len(clock) > 9 else 0.0)
        if match["gm"] and self.at is not None and found < self.at - 180 * 86400:
            return whole.replace(year=whole.year + 1).timestamp()  # the year is over
        if not match["gm"]:
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
