"""Tables of the field: variables of NCCL, Xids, layouts of ranks, forms of log prefixes. Knows no job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diag.text.tables import load_table


def table(name: str) -> Any:
    """A table of this folder, NAME.yaml, as it is there."""
    return load_table(Path(__file__).parent / f"{name}.yaml")
