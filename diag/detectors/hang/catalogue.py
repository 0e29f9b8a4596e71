"""The causes of a hang, one entry each, in `causes/*.yaml`: its classes, sentence, advice, and paragraph of the manual.

`summary` follows "rank 3 has", `advice` is for the ranks to blame; `alone` replaces either where nobody is seen to
wait for them. [one|several] is chosen by the number of these ranks. Places such as {child} are those of `facts.FACTS`,
which has words for each of them for every verdict. What stands in <live> of an advice is left out once the job has ended
(`diag.model.what_holds`). `manual` has the paragraph in each language, or the name of the cause whose
paragraph it shares.

`ground` is why such a hang cannot end by itself, its kind and the fact, which makes it critical, not a warning
(`proven_by: kernel`: only where the kernel shows it, not by stacks alone; `last_wait`: only where the last wait of the
chain is such a one, whatever the cause). `report_after` and `hang_after` are seconds of silence after which it is
reported, and called a hang without such a ground, where these differ from those of other causes.

`kinds` is what causes have in common, for what may be added to any of them (`KINDS`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from diag.text.tables import load_table

# Without a ground of its own a wait is a hang only after so long.
HANG_AFTER_SECONDS = 300.0

KINDS = (
    "outside",  # its peers wait in a call, it is elsewhere, and what it waits for is not known
    "place",  # where it is is known, not why
    "computes",  # it computes itself
    "child_computes",  # a process that it waits for computes
    "lock",  # by its stack it waits for a lock
    "loop",  # it goes round in a loop
    "polls",  # that loop looks again and again for something
    "calls",  # all are in calls, and some of them do not end
    "unlike_calls",  # these are not the same
    "asks_one",  # of several that stand at one line, all may have asked one service or process
    "of_all",  # nothing tells which of them should have gone first
    "like_a_slow_one",  # until it ends, one that is only slow looks the same
    "come_through_before",  # an attempt before this one has been through the phase
    "never_meant",  # no program waits so by intent
)

# In the order in which the manual has them.
FILES = (
    "data_and_saves", "locks", "threads", "resources", "peers", "kernel_waits", "collectives", "gpus", "ray", "nobody",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Texts:
    """What is reported of a verdict."""

    summary: str
    advice: str


@dataclass(frozen=True, slots=True)
class Entry:
    cause: str
    classes: tuple[str, ...]
    others: Texts  # where somebody waits for the culprits
    alone: Texts
    manual: Mapping[str, str]  # by language
    shares: str  # the cause that has the paragraph
    kinds: frozenset[str] = frozenset()
    ground: tuple[str, str] | None = None
    proven_by: str = ""
    report_after: float | None = None
    hang_after: float = HANG_AFTER_SECONDS

    @classmethod
    def of(cls, cause: str, row: Mapping[str, Any], rows: Mapping[str, Any]) -> Entry:
        shares = row["manual"] if isinstance(row["manual"], str) else cause
        others = Texts(row.get("summary", "{not_moved}{place}"), row["advice"])
        alone = row.get("alone", {})
        return cls(
            cause,
            tuple(row["classes"]),
            others,
            Texts(alone.get("summary", others.summary), alone.get("advice", others.advice)),
            rows[shares]["manual"],
            shares,
            frozenset(row.get("kinds", ())),
            next(iter(row.get("ground", {}).items()), None),
            row.get("proven_by", ""),
            row.get("report_after"),
            row.get("hang_after", HANG_AFTER_SECONDS),
        )


@cache
def catalogue() -> dict[str, Entry]:
    """Read once, when a detector is made: not first in a hang."""
    folder = Path(__file__).parent / "causes"
    rows = {cause: row for name in FILES for cause, row in load_table(folder / f"{name}.yaml").items()}
    return {cause: Entry.of(cause, row, rows) for cause, row in rows.items()}


def entry_of(cause: str) -> Entry:
    """That of `xid_79` is `xid_N`; of a cause that another version of diag names, `unknown`."""
    known = catalogue()
    return known.get(cause) or known.get(re.sub(r"_\d+$", "_N", cause)) or known["unknown"]


def manual_items(lang: str) -> list[str]:
    """The list of the manual's page: "- `cause`, `cause` (class, class): paragraph"."""
    colon = "：" if lang == "zh" else ": "
    items = []
    for entry in catalogue().values():
        if entry.shares == entry.cause:
            causes = [one.cause for one in catalogue().values() if one.shares == entry.cause]
            head = ", ".join(f"`{cause}`" for cause in causes)
            items.append(f"- {head} ({', '.join(entry.classes)}){colon}{entry.manual[lang]}")
    return items
