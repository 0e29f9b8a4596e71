"""What accelerate's config file says of the nodes, which its flags may leave out."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from diag.launch.launchers.nodes.facts import Environment, ReadText

__all__ = ["config_flags"]

# accelerate 1.15, commands/launch.py: what a flag leaves out is taken from the file, under the same name
_KEYS = ("num_machines", "machine_rank", "main_process_ip", "main_process_port")
_MOST_TEXT = 200_000


def config_flags(words: Sequence[str], env: Environment, read_text: ReadText) -> tuple[dict[str, str], str]:
    """The flags that the file stands for, and its path; empty where there is no file.

    >>> config_flags(["accelerate", "launch", "--config_file=/c"], {}, {"/c": "num_machines: 2\\nmachine_rank: 1"}.get)
    ({'--num_machines': '2', '--machine_rank': '1'}, '/c')
    """
    path = ""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name == "--config_file":
            path = value if equals else after
            break
    if not path:
        # commands/config/config_args.py
        cache = (
            env.get("HF_HOME")
            or (env.get("XDG_CACHE_HOME") or f"{env.get('HOME', '')}/.cache") + "/huggingface"
        )
        path = f"{cache}/accelerate/default_config.yaml"
    text = read_text(path)
    try:
        told = yaml.safe_load((text or "")[:_MOST_TEXT])
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, path
    if not isinstance(told, dict):
        return {}, path
    return {f"--{key}": str(told[key]) for key in _KEYS if isinstance(told.get(key), (int, str))}, path
