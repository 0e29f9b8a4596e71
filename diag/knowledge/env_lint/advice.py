"""What the checks of variables share: the job that they look at, the advice that they give, NCCL's way to
read numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from diag.model import Severity


@dataclass(frozen=True, slots=True)
class Advice:
    """`id` is env-harmful or env-no-effect; `does` what the variable really does; `instead` what to do, as an
    order."""

    id: str
    variable: str
    value: str
    severity: Severity
    does: str
    instead: str


@dataclass(frozen=True, slots=True)
class LintedJob:
    env: Mapping[str, str]
    nodes: int | None
    nccl_version: tuple[int, ...] | None
    rdma: bool | None

    def number(self, name: str) -> int | None:
        return number(self.env[name]) if self.env.get(name) else None

    def harmful(self, name: str, does: str, instead: str, severity: Severity = Severity.WARNING) -> Advice:
        return Advice("env-harmful", name, self.env[name], severity, does, instead)

    def useless(self, name: str, does: str, instead: str, severity: Severity = Severity.WARNING) -> Advice:
        return Advice("env-no-effect", name, self.env[name], severity, does, instead)


Check = Callable[[LintedJob], Iterator[Advice]]


def number(text: str) -> int:
    """As C's strtoll(text, NULL, 0) takes it: leading digits, hexadecimal and octal too, 0 for words.

    >>> number("1"), number("true"), number("0x10"), number("8M"), number("-1")
    (1, 0, 16, 8, -1)
    """
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") and len(digits) > 1 else 10
    return (-1 if match[1] == "-" else 1) * int(digits, base)
