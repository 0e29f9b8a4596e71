"""What `--on CLASS=ACTION` asks for: read from the command line, by the carrier that does it and the hub that decides."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from diag.text.errors import DiagError

KINDS = ("notify", "run", "end", "restart")
AFTER_SECONDS = 300.0  # ours: a person who is there has looked by then
GRACE_SECONDS = 30.0  # as Kubernetes (terminationGracePeriodSeconds) and Slurm (KillWait)
RESTARTS = 1
ATTEMPT = "DIAG_ATTEMPT"  # CMD's variables
RESUME_FLAGS = "DIAG_RESUME_FLAGS"
_SHAPES = "notify, run:CMD, end, end:CODE, restart or restart:N"
_CLASS = re.compile(r"([a-z][a-z-]*)(?:/([a-z][a-z_]*))?")


@dataclass(frozen=True, slots=True)
class Rule:
    """`finding` and, where one is given, its `klass`; `number` is the code of `end` (None: CMD's own) or the most restarts.

    >>> Rule.read("hang/data_loading=restart:2")
    Rule(finding='hang', klass='data_loading', kind='restart', number=2, words=())
    >>> str(Rule.read("hang=run:/opt/page me"))
    'hang=run:/opt/page me'
    """

    finding: str
    klass: str
    kind: str
    number: int | None = None
    words: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Rule:
        """Raises DiagError that says what is wrong with it."""
        name, equals, action = text.partition("=")
        matched = _CLASS.fullmatch(name.strip())
        if not equals or matched is None:
            raise _wrong(text, "it is not CLASS=ACTION", "diag run --on hang=restart -- CMD")
        kind, colon, given = action.strip().partition(":")
        finding, klass = matched[1], matched[2] or ""
        if kind == "run":
            return cls(finding, klass, kind, None, _words(text, given))
        if kind not in KINDS or (kind == "notify" and colon):
            raise _wrong(text, f"{action.strip()!r} is no action", f"one of {_SHAPES}")
        if not colon:
            return cls(finding, klass, kind, RESTARTS if kind == "restart" else None)
        least, most = (1, 100) if kind == "restart" else (0, 255)
        if not given.isdecimal() or not least <= int(given) <= most:
            raise _wrong(text, f"{given!r} is no number from {least} to {most}", f"one of {_SHAPES}")
        return cls(finding, klass, kind, int(given))

    @property
    def ends_the_job(self) -> bool:
        return self.kind in ("end", "restart")

    @property
    def action(self) -> str:
        if self.kind == "run":
            return f"run:{shlex.join(self.words)}"
        return self.kind if self.number is None else f"{self.kind}:{self.number}"

    def __str__(self) -> str:
        return f"{self.finding}{'/' if self.klass else ''}{self.klass}={self.action}"


def _words(text: str, given: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(given))
    except ValueError as error:
        raise _wrong(text, str(error).lower(), "quote the command as a shell would read it") from None
    if not words:
        raise _wrong(text, "run: names no command", "--on 'hang=run:/path/to/command --its options'")
    return words


def _wrong(text: str, why: str, hint: str) -> DiagError:
    return DiagError(f"--on {text} cannot be used: {why}", hint=hint, exit_code=2)


def read_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """In the order given: of those for one finding the first whose gates are open is done. Raises DiagError."""
    return tuple(dict.fromkeys(map(Rule.read, texts)))
