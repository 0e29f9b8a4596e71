"""The flags of a training command: values by name, read with their type. a-b and a_b are the same, the last
of two wins."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from diag.launch.launchers.command.options import CommandError

_NUMBER_LIKE = re.compile(r"-\d")
_TRUE, _FALSE = ("true", "1", "yes", "y", "t", "on"), ("false", "0", "no", "n", "f", "off", "none")


class Flags:
    """`read` collects the names that were asked for: what was not asked for has no part in the estimate."""

    def __init__(
        self,
        values: Mapping[str, tuple[str, ...]],
        environment: Mapping[str, str] | None = None,
        folder: Path = Path(),
    ) -> None:
        self._values = dict(values)
        self.environment = dict(environment or {})
        self.folder = folder  # that relative paths start from
        self.read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        return list(self._values)

    def _find(self, names: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
        self.read.update(names)
        for name in names:
            if name in self._values:
                return name, self._values[name]
        return None

    def words(self, *names: str) -> tuple[str, ...]:
        found = self._find(names)
        return found[1] if found else ()

    def text(self, *names: str, default: str = "") -> str:
        found = self._find(names)
        return found[1][0] if found and found[1] else default

    def choice(self, *names: str, of: Iterable[str], default: str) -> str:
        found = self._find(names)
        if found is None or not found[1]:
            return default
        value, allowed = found[1][0].lower(), list(of)
        if value not in allowed:
            raise CommandError(f"--{found[0]} is {found[1][0]!r}", hint=f"one of {', '.join(allowed)}")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        found = self._find(names)
        if found is None:
            return default
        value = found[1][0].lower() if found[1] else "true"
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise CommandError(f"--{found[0]} is {found[1][0]!r}, which is neither true nor false")

    def whole(self, *names: str, default: int, least: int = 1, most: int = 10**9) -> int:
        value = self.maybe_whole(*names, least=least, most=most)
        return default if value is None else value

    def maybe_whole(self, *names: str, least: int = 1, most: int = 10**9) -> int | None:
        found = self._find(names)
        if found is None or not found[1] or found[1][0].lower() in ("none", "null"):
            return None
        text = found[1][0]
        if not re.fullmatch(r"[+-]?\d{1,18}", text) or not least <= int(text) <= most:
            raise CommandError(f"--{found[0]} is {text!r}", hint=f"a whole number from {least} to {most}")
        return int(text)

    def share(self, *names: str, default: float) -> float:
        """A number from 0 to 1."""
        found = self._find(names)
        if found is None or not found[1]:
            return default
        try:
            value = float(found[1][0])
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise CommandError(f"--{found[0]} is {found[1][0]!r}", hint="a number from 0 to 1")
        return value

    def unknown(self, known: Iterable[str]) -> tuple[str, ...]:
        """Flags that neither the estimate nor the trainer is known to read, with the known name that is
        nearest."""
        names = set(known) | self.read
        lines = []
        for name in self._values:
            if name not in names:
                near = difflib.get_close_matches(
                    name, sorted(self.read), 1, 0.75
                ) or difflib.get_close_matches(name, names, 1, 0.8)
                lines.append(f"--{name}" + (f" (did you mean --{near[0]}?)" if near else ""))
        return tuple(lines)


def parse_flags(
    words: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path = Path()
) -> Flags:
    """
    >>> flags = parse_flags(["--tensor-model-parallel-size", "2", "--sequence_parallel", "--dataset", "a", "b", "--lr=1e-5"])
    >>> flags.whole("tensor_model_parallel_size", default=1), flags.flag("sequence_parallel"), flags.words("dataset")
    (2, True, ('a', 'b'))
    """
    values: dict[str, list[str]] = {}
    current: list[str] = []
    for word in words:
        if word.startswith("--") and len(word) > 2 and not _NUMBER_LIKE.match(word[1:]):
            name, equals, value = word[2:].partition("=")
            current = [value] if equals else []
            values[name.replace("-", "_")] = current
        else:
            current.append(word)
    return Flags({name: tuple(given) for name, given in values.items()}, environment, folder)
