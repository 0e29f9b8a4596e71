"""Whether what was found would come again if the same command was started again; and for which findings diag may end a
job, where it is asked to. The table is `retry.yaml`."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from diag.detectors.findings import load
from diag.model import Finding

RETRYABLE = ("yes", "no", "elsewhere", "unknown")


@cache
def table() -> dict[str, dict[str, Any]]:
    return load("retry.yaml")


def retryable(finding: Finding) -> str:
    """One of RETRYABLE; unknown for the findings of rules of a user's own.

    >>> from diag.detectors.findings import finding
    >>> retryable(finding("gpu-fault", "xid_79", summary="", since=0.0, advice="", severity="critical", confidence="high"))
    'elsewhere'
    """
    row = table().get(finding.id, {})
    causes, cause = row.get("causes", {}), finding.cause
    for name in (cause, re.sub(r"_\d+$", "_N", cause)):
        if name in causes:
            return str(causes[name])
    return str(row.get("classes", {}).get(finding.klass, row.get("retryable", "unknown")))


def acts(name: str, klass: str) -> tuple[str, ...]:
    """What may be done of a finding of this id and class, beside telling: end, restart.

    >>> acts("hang", "data_loading"), acts("hang", "unknown"), acts("held-up", "data_loading")
    (('end', 'restart'), (), ())
    """
    return tuple(table().get(name, {}).get("acts", {}).get(klass, ()))


def acting_classes(name: str) -> tuple[str, ...]:
    """The classes of this finding for which a job may be ended."""
    return tuple(table().get(name, {}).get("acts", {}))
