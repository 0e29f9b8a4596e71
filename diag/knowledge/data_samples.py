"""Samples of the data that trainers print at the start: whatever they hold, errors of other people's jobs too, is no
line of the program's own."""

from __future__ import annotations

import re

from diag.knowledge.log_prefix import Message
from diag.text.words import has_any

# ms-swift 3.7-4.6 prints a sample of the data, which may hold anybody's errors, up to its logger's next line:
#   [INFO:swift] [CHOSEN_INPUT] <|im_start|>user
MARKS = ("INPUT", "LABELS", "PROMPT", "RESPONSE", "CHOSEN", "REJECTED")
_SAMPLE = re.compile(rf"\[(?:[A-Z]{{1,20}}_)?(?:{'|'.join(MARKS)})(?:_IDS)?\] ")


class SampleTracker:
    """Given every line of which `may_begin` is true, and all of a rank while one of it is open."""

    def __init__(self) -> None:
        self._printing: set[int | None] = set()  # ranks that are in the middle of one

    def is_open(self, rank: int | None) -> bool:
        return rank in self._printing

    def is_of_data(self, rank: int | None, message: Message) -> bool:
        """Whether the line is of a sample of this rank: it begins one, or nothing of the program's came since."""
        if _SAMPLE.match(message.text):
            self._printing.add(rank)
            return True
        if rank not in self._printing:
            return False
        if not message.level and message.rank is None:
            return True
        self._printing.discard(rank)
        return False

    def over(self) -> None:
        """Steps are made: what is printed now is no sample any more."""
        self._printing.clear()


def may_begin(text: str) -> bool:
    return has_any(text, MARKS)
