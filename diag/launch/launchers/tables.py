"""The data of this package: what launchers read, which names have secrets and which matter, as tables of TOML."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any


@cache
def read_tables(name: str) -> dict[str, Any]:
    """Read once; never by the carrier."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(Path(__file__).with_name(name).read_bytes().decode())
