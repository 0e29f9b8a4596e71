"""Flags of a training command, as Megatron-LM (`--async-save`) and ms-swift (`--async_save true`) write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise


def flag_values(argv: Sequence[str], *names: str) -> Iterator[str]:
    """What a command gives these flags, one after another; "true" for one that stands alone. A dash and an
    underscore are the same here.

    >>> list(flag_values(["--save_steps=5", "--save-steps", "7", "--bf16"], "save_steps", "bf16"))
    ['5', '7', 'true']
    """
    for word, following in pairwise([*argv, "--"]):
        key, equals, value = word.partition("=")
        if key.startswith("--") and key[2:].replace("-", "_") in names:
            yield value if equals else "true" if following.startswith("--") else following
