"""Sizes as Kubernetes writes them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30,
    "Ti": 1 << 40, "Pi": 1 << 50,
}  # fmt: skip


def quantity(text: str) -> int | None:
    """None for what is none.

    >>> quantity("64Gi") == 64 << 30, quantity("8"), quantity("0.5G"), quantity("64GB"), quantity("500m")
    (True, 8, 500000000, None, 0)
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)(m|[KMGTP]i|[kMGTP])?", text.strip())
    if match is None:
        return None
    return int(float(match[1]) / 1000) if match[2] == "m" else int(float(match[1]) * _UNITS[match[2] or ""])
