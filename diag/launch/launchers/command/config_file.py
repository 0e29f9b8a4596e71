"""A file of arguments for ms-swift, as the arguments that it stands for."""

from __future__ import annotations

import json

from diag.launch.launchers.command.options import CommandError

_MOST_KEYS = 1000


def config_words(text: str) -> list[str]:
    """As swift/cli/main.py makes them: a list is several words, what holds further keys is one word of JSON. Raises
    CommandError for what is neither YAML nor JSON.

    >>> config_words("model: Qwen/Qwen3-8B\\ndataset: [a, b]\\npacking: true")
    ['--model', 'Qwen/Qwen3-8B', '--dataset', 'a', 'b', '--packing', 'True']
    """
    import yaml  # not for a command without such a file

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise CommandError(f"it is not YAML{where}") from error
    if not isinstance(found, dict) or len(found) > _MOST_KEYS:
        raise CommandError("it holds no arguments by name")
    words: list[str] = []
    for name, value in found.items():
        if name == "ENV":  # variables, which ms-swift sets itself
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += map(str, value)
        else:
            words.append(json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value))
    return words
