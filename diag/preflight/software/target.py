"""Which Python CMD will use, and what it will do there: found from its arguments, its files and its environment;
nothing is run."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diag.launch.launchers.command.names import ELSEWHERE, MODULES, SHELLS
from diag.preflight.line import table

_MOST_BYTES = 1 << 16
_LAUNCHERS = frozenset(["torchrun", "megatron", "swift", "accelerate", "deepspeed"])
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_EXPORT = re.compile(r"^\s*export\s+([A-Za-z_]\w*)=(['\"]?)([^'\"$`;&|\s]*)\2\s*(?:#.*)?$", re.MULTILINE)
_ACTIVATED = re.compile(
    r"^\s*(conda|mamba|micromamba)\s+activate\s+(\S+)|^\s*(?:source|\.)\s+(\S+/bin/activate)\b", re.MULTILINE
)
_IMPORT = re.compile(r"^\s*(?:import|from)\s+([A-Za-z_][\w.]*)", re.MULTILINE)
_ACTIVATE = "activate it and run `diag doctor` inside it"


@dataclass(frozen=True, slots=True)
class Target:
    """`launcher` is one of megatron, swift, torchrun, accelerate, deepspeed, python or "" (no CMD, or none
    that is known).

    `first` is what CMD's Python has as sys.path[0]; `imports` the modules that its script names
    (megatron.training, megatron), None where it has no script here; `unfit` why none could be found, with its
    remedy.
    """

    python: str
    found_by: str
    launcher: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    first: str = ""
    script: str = ""
    imports: frozenset[str] | None = None
    missing_program: str = ""
    unfit: str = ""
    remedy: str = ""

    @property
    def is_of_command(self) -> bool:
        """Whether CMD will use this Python, for all that is known."""
        return bool(self.launcher) and not self.unfit

    def has(self, *flags: str) -> str | None:
        """The value of the first of these flags in CMD ("" where it has none), None where none is there."""
        for index, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name in flags:
                after = self.words[index + 1] if index + 1 < len(self.words) else ""
                return value if equals else "" if after.startswith("--") else after
        return None


def find_target(command: Sequence[str], environment: Mapping[str, str], here: Path | None = None) -> Target:
    """`command` is without a leading `env A=B`; `here` is the working directory."""
    if not command:
        return _own(environment, (), found_by="diag's own Python, as no command was given")
    return _of_words(list(command), dict(environment), here if here is not None else Path.cwd(), 0)


def _own(
    environment: Mapping[str, str],
    words: Sequence[str],
    unfit: str = "",
    remedy: str = "",
    *,
    missing_program: str = "",
    found_by: str = "diag's own",
) -> Target:
    """diag's own Python, and why CMD's is not known."""
    found = Target(sys.executable, found_by, "", tuple(words), environment, unfit=unfit, remedy=remedy)
    return replace(found, missing_program=missing_program)


def _of_words(words: list[str], env: dict[str, str], here: Path, depth: int) -> Target:
    """Passes by srun, nohup, `diag run --` and other wrappers up to the first word that it knows."""
    for index, word in enumerate(words):
        name, rest = word.rpartition("/")[2], words[index:]
        if name in ELSEWHERE and index < 3:
            remedy = f"`diag doctor -- CMD` there, inside what {name} starts"
            return _own(env, words, f"`{name}` runs CMD elsewhere", remedy)
        if name in ("conda", "mamba", "micromamba") and words[index + 1 : index + 2] == ["run"]:
            return _own(env, words, f"`{name} run` chooses another environment", _ACTIVATE)
        if name in SHELLS and depth < 3:
            return _of_shell(rest, env, here, depth)
        if name in _LAUNCHERS or _PYTHON.fullmatch(name):
            return _of_program(rest, env, here)
        if index == 0:
            program = _which(word, env, here)
            if program is None:
                return _own(env, words, missing_program=word)
            interpreter = _shebang(program)
            called = interpreter[0].rpartition("/")[2] if interpreter else ""
            if called in SHELLS and depth < 3:
                inner = _of_shell([interpreter[0], str(program), *words[1:]], env, here, depth)
                if not inner.unfit:  # else it may be a wrapper that runs its arguments
                    return inner
            elif _PYTHON.match(called):
                return _of_program(rest, env, here)
    unfit = f"`{words[0]}` does not start a Python that diag can identify"
    return _own(env, words, unfit, "name the launcher: `diag doctor -- torchrun ...`")


def _of_shell(words: list[str], env: dict[str, str], here: Path, depth: int) -> Target:
    """`bash -c TEXT` and `bash FILE`: what they export with a plain value, and the first launcher that they
    name."""
    rest = [word for word in words[1:] if not re.fullmatch(r"-[a-z]*[a-bd-z]|-|--\w+", word)]
    text = ""
    if rest and re.fullmatch(r"-[a-z]*c", rest[0]):
        text = rest[1] if len(rest) > 1 else ""
    elif rest:
        text = _head(here / rest[0])
    env = {**env, **{name: value for name, _, value in _EXPORT.findall(text)}}
    active = _ACTIVATED.search(text)
    if active is not None and active[3] and "$" not in active[3]:
        env["PATH"] = f"{(here / active[3]).parent}:{env.get('PATH', '')}"
    elif active is not None:
        return _own(env, words, f"the script activates {active[2] or active[3]}", _ACTIVATE)
    for line in text.replace("\\\n", " ").splitlines():
        command = _launched(line)
        if command:
            return _of_words(command, env, here, depth + 1)
    unfit = f"`{' '.join(words[:2])}` names no launcher that diag knows"
    return _own(env, words, unfit, "`diag doctor -- ` with the launcher's own line")


def _launched(line: str) -> list[str]:
    """The command of a launcher or a Python in a line of a script; empty where it has none."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return []
    words = list(itertools.dropwhile(re.compile(r"[A-Za-z_]\w*=").match, words))
    if words[:1] in (["echo"], ["pip"], ["which"]):
        return []
    for index, word in enumerate(words[:-1]):
        name = word.rpartition("/")[2]
        if name in _LAUNCHERS or _PYTHON.fullmatch(name):
            return words[index:]
    return []


def _of_program(words: list[str], env: dict[str, str], here: Path) -> Target:
    program = _which(words[0], env, here)
    if program is None:
        return _own(env, words, missing_program=words[0])
    name = words[0].rpartition("/")[2]
    if _PYTHON.fullmatch(name):
        return _of_python(str(program), words, env, here)
    interpreter = _shebang(program)
    python = _which(interpreter[0], env, here) if interpreter else None
    if python is None or not _PYTHON.match(python.name):
        # a launcher that is not a Python script lies in the folder of its Python in conda and venv
        python = program.parent / "python3"
        if not python.exists():
            unfit = f"{program} has no Python in its first line"
            return _own(env, words, unfit, "run `diag doctor` with the Python of the job")
    path = env.get("PYTHON_EXEC", "") if name == "torchrun" else ""  # torch/distributed/run.py asks for it
    script, imports = _script(words[1:], here)
    first = str((here / script).parent) if script else str(program.parent)
    return Target(path or str(python), f"of {program}", name, tuple(words), env, first, script, imports)


def _of_python(python: str, words: list[str], env: dict[str, str], here: Path) -> Target:
    launcher, rest, first = "python", words[1:], str(here)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        del rest[: 2 if rest[0] in ("-W", "-X") else 1]
    script, imports = "", None
    if rest[:1] == ["-m"] and len(rest) > 1:
        launcher = MODULES.get(rest[1], "python")
        if launcher == "python":
            imports, rest = frozenset([rest[1].partition(".")[0]]), []
        rest = rest[2:]
    if imports is None:
        script, imports = _script(rest, here)
    if script:
        first = str((here / script).parent)
    return Target(python, f"`{words[0]}` of CMD", launcher, tuple(words), env, first, script, imports)


def _script(words: Sequence[str], here: Path) -> tuple[str, frozenset[str] | None]:
    """The first word that is a Python file, and what it imports at its own level; its own modules' imports
    are not followed."""
    for word in words:
        if word.endswith(".py"):
            text = _head(here / word, 1 << 20)
            dotted = frozenset(_IMPORT.findall(text))
            return word, dotted | {name.partition(".")[0] for name in dotted} if text else None
    return "", None


def _which(word: str, env: Mapping[str, str], here: Path) -> Path | None:
    if "/" in word:
        path = here / word
        return path if path.is_file() and os.access(path, os.X_OK) else None
    found = shutil.which(word, path=env.get("PATH", os.defpath))
    return Path(found) if found else None


def _shebang(program: Path) -> list[str]:
    """The interpreter and its arguments; [] where there is none.

    pip writes `#!/bin/sh` and `'''exec' /long/path/python "$0" "$@"` where the path is too long for a first
    line.
    """
    head = _head(program, 4096)
    if not head.startswith("#!"):
        return []
    lines = head.splitlines()
    long = re.match(r"'''exec' (\"[^\"]+\"|\S+)", lines[1]) if len(lines) > 1 else None
    words = [long[1].strip('"')] if long else lines[0][2:].split()
    if words and words[0].rpartition("/")[2] == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words


def _head(path: Path, most: int = _MOST_BYTES) -> str:
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def is_megatron(target: Target) -> bool:
    """`megatron` of ms-swift, or a script of Megatron-LM."""
    return target.launcher == "megatron" or "megatron" in (target.imports or ())


def used_by(target: Target) -> frozenset[str] | None:
    """Names of distributions; None where nothing is known of what CMD uses."""
    with_rlhf = "rlhf" in target.words
    used: set[str] = set()
    if target.launcher == "megatron":
        used = {*_uses("swift"), *_uses("megatron"), "mcore-bridge"} - (set() if with_rlhf else {"trl"})
    elif target.launcher == "swift":
        used = set(_uses("swift"))
    elif target.imports:
        used = {name for module in target.imports if "." not in module for name in _uses(module)}
    if with_rlhf and target.launcher in ("megatron", "swift"):
        used.add("msgspec")
    if target.launcher == "deepspeed" or target.has("--deepspeed", "--deepspeed_config") is not None:
        used.update(_uses("deepspeed"))
    if target.launcher == "accelerate":
        used.update(_uses("accelerate"))
    if target.has("--use_vllm") in ("true", "True", "1"):
        used.add("vllm")
    if target.launcher == "torchrun":
        used.add("torch")
    return frozenset(used) if used - {"torch"} else None


def _uses(module: str) -> Iterator[str]:
    return _flat(table("versions")["uses"].get(module, module.replace("_", "-")))


def _flat(names: Any) -> Iterator[str]:
    if isinstance(names, str):
        yield names
    else:
        for name in names:
            yield from _flat(name)
