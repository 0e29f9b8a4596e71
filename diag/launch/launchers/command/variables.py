"""Variables in front of a command: `A=1 torchrun ...`, `env -u B A=1 torchrun ...`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def split_environment(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """CMD without what sets variables in front of it, and the environment that it will have.

    >>> split_environment(["env", "-u", "X", "A=1", "torchrun", "t.py"], {"X": "0", "Y": "2"})
    (['torchrun', 't.py'], {'Y': '2', 'A': '1'})
    """
    words, env = list(command), dict(environment)
    by_env = bool(words) and words[0].rpartition("/")[2] == "env"
    del words[:by_env]
    while words:
        word = words[0]
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            env[name] = value
        elif by_env and word in ("-u", "--unset") and len(words) > 1:
            env.pop(words.pop(1), None)
        elif by_env and word in ("-i", "-", "--ignore-environment"):
            env.clear()
        else:
            break
        del words[0]
    return words, env
