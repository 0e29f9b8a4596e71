"""One summand of an estimate, by its row in terms.yaml."""

from __future__ import annotations

import math
from pathlib import Path

from diag.model.observations.memory import MemoryTerm
from diag.text.tables import fill, load_table

TERMS = Path(__file__).with_name("terms.yaml")


def make_term(key: str, size: float, **values: object) -> MemoryTerm:
    """`values` are those of the row's formula.

    >>> make_term("weights", 2e9, parameters=1e9, each=2.0).formula
    '1B parameters x 2 bytes'
    """
    row = load_table(TERMS)[key]
    return MemoryTerm(row["name"], max(0, math.ceil(size)), fill(row["formula"], **values), row["source"])
