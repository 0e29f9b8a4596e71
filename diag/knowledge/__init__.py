"""Tables of the field: variables of NCCL, Xids, layouts of ranks, forms of log prefixes. Knows no job."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def table(name: str) -> Any:
    """A table of this folder, NAME.yaml, as it is there; read once, when it is first needed."""
    import yaml  # `diag --help` and `diag dump` do without

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((Path(__file__).parent / f"{name}.yaml").read_text("utf-8"), loader)
