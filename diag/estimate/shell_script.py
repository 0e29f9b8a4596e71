"""The training command in a shell script, by looking at its text: assignments, exports, arrays, continued lines. No shell is run,
so what a script computes stays unknown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

__all__ = ["training_command"]

_STARTS = ("megatron", "swift", "torchrun", "accelerate", "deepspeed", "srun", "python", "python3")
_ASSIGNMENT = re.compile(r"(?:export\s+|declare\s+-x\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"(?:declare\s+-a\s+)?([A-Za-z_]\w*)\+?=\(")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[@\]|\[\*\])?(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*)|([@*#1-9]))")


def training_command(
    text: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str] | None, dict[str, str]]:
    """The last command in the text that looks like training, and the variables set before it; None where there is none.

    >>> training_command("export NPROC_PER_NODE=8\\nTP=2\\nmegatron sft \\\\\\n  --tensor_model_parallel_size $TP", [], {})
    (['megatron', 'sft', '--tensor_model_parallel_size', '2'], {'NPROC_PER_NODE': '8', 'TP': '2'})
    """
    variables: dict[str, str] = {}
    best: list[str] | None = None
    known = dict(environment)
    for number, argument in enumerate(arguments, 1):
        known[str(number)] = argument
    known["@"] = known["*"] = shlex.join(arguments)
    known["#"] = str(len(arguments))
    for line in _lines(text):
        array = _ARRAY.match(line)
        if array:
            inner = _filled(line[array.end() :].rpartition(")")[0].replace("\n", " "), known)
            known[array[1]] = (known.get(array[1], "") + " " if "+=" in array[0] else "") + inner
            continue
        words = _words(line, known)
        if not words:
            continue
        while words and (assignment := _ASSIGNMENT.fullmatch(words[0])) and "(" not in words[0][:2]:
            variables[assignment[1]] = known[assignment[1]] = assignment[2]
            words = words[1:]
        if words[:1] == ["export"]:
            for word in words[1:]:
                name, equals, value = word.partition("=")
                if equals:
                    variables[name] = known[name] = value
            continue
        names = [word.rpartition("/")[2] for word in words]
        if any(name in _STARTS for name in names[:8]) and _trains(words):
            first = next(index for index, name in enumerate(names) if name in _STARTS)
            best = words[first:]
    return best, variables


def _trains(words: Sequence[str]) -> bool:
    return any(word.startswith("--") for word in words) and "pip" not in words[:3]


def _lines(text: str) -> list[str]:
    """Logical lines: comments left out, continued lines and arrays over several lines joined, `a && b` and `a; b` apart."""
    lines: list[str] = []
    held = ""
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#[^'\"]*$", "", raw)
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        held += line
        if _ARRAY.match(held.strip()) and ")" not in held:
            held += "\n"
            continue
        lines += [part.strip() for part in re.split(r"&&|;(?=\s|$)|\|(?=\s)|(?<![>&\d])&(?=\s*$)", held) if part.strip()]
        held = ""
    if held.strip():
        lines.append(held.strip())
    return lines


def _filled(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3] or match[4]
        return known.get(name) or (match[2] or "")

    for _ in range(4):  # a variable may hold another
        filled = _VARIABLE.sub(value, text)[:100_000]
        if filled == text:
            break
        text = filled
    return text


def _words(line: str, known: Mapping[str, str]) -> list[str]:
    try:
        return shlex.split(
            re.sub(r"\d?>+\s*\S+|2>&1", "", _filled(line.replace('"$@"', "$@").replace('"${', "${").replace('}"', "}"), known))
        )
    except ValueError:  # quotes that do not close on this line
        return []
