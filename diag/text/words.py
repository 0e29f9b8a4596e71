"""Is one of these words in a line?"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ShapeWords", "has_any", "shape_of"]


def has_any(text: str, words: Iterable[str]) -> bool:
    """Whether `text` has one of them: asked of every line of a log a dozen times, in a third of the time of
    `any` over a generator.

    >>> has_any("CUDA error", ("NCCL", "CUDA")), has_any("CUDA error", ())
    (True, False)
    """
    for word in words:  # noqa: SIM110 - see above
        if word in text:
            return True
    return False


_DIGITS = b"0123456789"
_MOST_SHAPES = 10_000  # that are remembered


def shape_of(line: str) -> bytes:
    """What is left of it without its digits: a program prints few shapes, each of them very often.

    >>> shape_of("step 12 of 500")
    b'step  of '
    """
    return line.encode("utf-8", "replace").translate(None, _DIGITS)


class ShapeWords:
    """Whether a line can have one of these words, by its shape: looked for once in each shape. Where a word is in a line,
    the word without its digits is in the line's shape.

    >>> words = ShapeWords("fetched", "shard 7")
    >>> words.may_be_in(shape_of("batch 12 of shard 7")), words.may_be_in(shape_of("batch 12"))
    (True, False)
    """

    def __init__(self, *words: str) -> None:
        self._words = [shape_of(word) for word in words]
        self._known: dict[bytes, bool] = {}

    def may_be_in(self, shape: bytes) -> bool:
        known = self._known.get(shape)
        if known is None:
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            known = self._known[shape] = any(word in shape for word in self._words)
        return known
