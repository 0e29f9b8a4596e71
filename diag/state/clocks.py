"""What a line shows of the time that passes: no news, whatever it counts."""

from __future__ import annotations

import re

# In the forms of loggers, tqdm, rich, urllib3, torch and curl:
#   2026-11-21 10:00:00,123   [W1120 22:48:19.163027360 socket.cpp:752]   [00:35<01:00, 1.05it/s]   1763856998.12
#   Waiting for server, 12.5 s   elapsed 35   (attempt 7/100)   Retrying (Retry(total=4, ...))   heartbeat 12
_NUMBER = r"\d+(?:[.,]\d+)*"
CLOCK = re.compile(
    rf"(?<!\d)(?:\d{{4}}[-/]\d\d?[-/]\d\d?|\d+(?::\d\d)+(?:[.,]\d+)?(?![\d.])|1\d{{9}}(?:\d{{3}}){{0,3}}(?:\.\d+)?(?!\d)|\d+[mh]\b"
    rf"|{_NUMBER} ?(?:[kMGTi]{{0,2}}B/s|it/s|s/it|/s|(?:[mun]?s|secs?|seconds?|min|minutes?|hours?)\b))|\? ?it/s"
    r"|\b(?i:elapsed|waited|uptime|attempts?|try|tries|retry|retries|retry\(total|heartbeat|alive)"
    rf"\W{{1,3}}{_NUMBER}(?:(?: of |/)\d+)?"
)
# A spinner turns, and blocks of a bar stand beside its percentage.
BETWEEN = re.compile(r"[\W_]+")
