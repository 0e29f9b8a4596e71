"""How the command is started again: with the flags that go on from the last whole checkpoint, where it is known that its
program takes them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from diag.knowledge.checkpoint_args import WEIGHTS_ONLY, resume_words
from diag.launch.actions import RESUME_FLAGS
from diag.launch.launchers.command import Command, ReadText, read_command, read_file
from diag.model.observations import CheckpointFolder

# ms-swift's own commands and Megatron-LM's scripts: their flags are those of `resume_words`.
_KNOWN = ("swift", "megatron", "megatron-lm")
_MOST_DIRECT = 6  # modules deep: `python -m a.b.c`


@dataclass(frozen=True, slots=True)
class Resume:
    """`words` are the command; `flags` go into it, or into DIAG_RESUME_FLAGS for a script that uses it. `text` says which,
    behind "started again"."""

    words: tuple[str, ...]
    flags: tuple[str, ...]
    text: str


def resume(
    argv: Sequence[str],
    whole: CheckpointFolder | None,
    *,
    said: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    read_text: ReadText = read_file,
) -> Resume:
    """`said`: the command and a rank's, in which flags are looked for. `folder`: where it is started. `whole`: the last
    whole checkpoint, None where none was seen."""
    words = tuple(argv)
    read_text = partial(_text_or_none, read_text)
    if whole is None:
        return Resume(words, (), "from the start, as no whole checkpoint was seen")
    flags, note = resume_words(said, whole.path, whole.kind)
    if note == WEIGHTS_ONLY:
        return Resume(words, (), f"from the start: {whole.path} holds weights only")
    command = read_command(argv, environment, folder, read_text=read_text)
    why = _not_taken(command, words, flags, folder, read_text)
    if not why:
        added = replaced(words, len(words) - len(command.words), flags)
        return Resume(added, flags, f"with {shlex.join(flags)}")
    if why == RESUME_FLAGS:
        return Resume(words, flags, f"with {shlex.join(flags)} in its variable {RESUME_FLAGS}")
    return Resume(
        words, flags, f"unchanged, as {why}: it goes on from {whole.path} only if it does so by itself"
    )


def _text_or_none(read_text: ReadText, path: str) -> str | None:
    """What is not there, or cannot be read, says nothing."""
    try:
        return read_text(path)
    except (OSError, ValueError):
        return None


def _not_taken(
    command: Command, words: tuple[str, ...], flags: Sequence[str], folder: Path, read_text: ReadText
) -> str:
    """Why the flags cannot be put behind the command; empty where they can, RESUME_FLAGS where a script takes them."""
    direct = bool(command.program) and words[len(words) - len(command.words) :] == command.words
    if not direct or any(shell in ("bash", "sh", "dash", "zsh") for shell in command.chain):
        for word in words:
            text = read_text(str(folder / word)) if "\n" not in word and len(word) < 4096 else None
            if RESUME_FLAGS in (text or "") or RESUME_FLAGS in word:
                return RESUME_FLAGS
        return f"a script starts it that does not use ${RESUME_FLAGS}"
    if command.program in _KNOWN:
        return ""
    names = [flag.lstrip("-") for flag in flags if flag.startswith("--")]
    given = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in command.words}
    if all(name.replace("_", "-") in given for name in names):
        return ""
    text = _text_of_program(command.line, folder, read_text)
    if text and all(name in text or name.replace("_", "-") in text for name in names):
        return ""
    return f"its program is not seen to take {names[0] if names else 'such flags'}"


def _text_of_program(line: Sequence[str], folder: Path, read_text: ReadText) -> str:
    """The text of the file that is run: `train.py`, or the module of `-m`. Other files of the program are not read."""
    for place, word in enumerate(line):
        if word.endswith(".py"):
            return read_text(str(folder / word)) or ""
        if word == "-m" and place + 1 < len(line) and not line[place + 1].startswith("torch."):
            parts = line[place + 1].split(".")[:_MOST_DIRECT]
            for name in (Path(*parts, "__main__.py"), Path(*parts).with_suffix(".py")):
                if text := read_text(str(folder / name)):
                    return text
    return ""


def replaced(words: Sequence[str], begin: int, flags: Sequence[str]) -> tuple[str, ...]:
    """The command with these flags behind it, in place of those that it has of the same names from `begin` on.

    >>> replaced(["torchrun", "train.py", "--load", "/a", "--lr=1", "--load=/b"], 2, ["--load", "/c"])
    ('torchrun', 'train.py', '--lr=1', '--load', '/c')
    """
    names = {_name(flag) for flag in flags if flag.startswith("--")}
    kept = list(words[:begin])
    skip = False
    for place in range(begin, len(words)):
        word = words[place]
        if skip:
            skip = False
            continue
        if word.startswith("--") and _name(word) in names:
            has_value = "=" not in word and place + 1 < len(words) and not words[place + 1].startswith("--")
            skip = has_value
            continue
        kept.append(word)
    return (*kept, *flags)


def _name(flag: str) -> str:
    return flag.partition("=")[0].lstrip("-").replace("_", "-")


def is_there(whole: CheckpointFolder) -> bool:
    """Whether it still is: rotation of checkpoints may have taken it since it was read."""
    return os.path.isdir(whole.path)  # noqa: PTH112 - no exception for a path that is none
