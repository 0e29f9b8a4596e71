"""The training command in a shell script, from its text: assignments, exports, arrays, continued
lines. No shell is run, so what a script computes stays unknown."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from diag.launch.launchers.command.container import ENGINES
from diag.launch.launchers.command.names import MPI, is_shell

_STARTS = frozenset(
    {"megatron", "swift", "torchrun", "accelerate", "deepspeed", "srun", "python", "python3", *MPI, *ENGINES}
)
_ASSIGNMENT = re.compile(r"(?:export\s+|declare\s+-x\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"(?:declare\s+-a\s+)?([A-Za-z_]\w*)\+?=\(")
# What opens and closes a part of a script that may not be run, or more than once.
_OPENS, _CLOSES = (
    frozenset({"if", "for", "while", "until", "case", "select"}),
    frozenset({"fi", "done", "esac"}),
)
_READS = re.compile(r"(?:source|\.)\s+(\S+)|(eval|read|readarray|mapfile)\b")
# Files that scripts of training read everywhere, and that set paths alone.
_PATHS_ONLY = re.compile(
    r"activate$|conda\.sh$|set_env\.sh$|setvars\.sh$|\.bashrc$|\.profile$|/profile$|modules?\.sh$|/init/\w+$"
)
# `eval "$(conda shell.bash hook)"`
_HOOKS = re.compile(r"eval\s+[\"']?\$\(\S*(conda|mamba|pyenv|brew|direnv|spack)\b")
# `if [ -z "$NNODES" ]; then NNODES=1; fi`: a default
_IF_UNSET = re.compile(r"if\s+(?:\[\[?|test)\s+-z\s+[\"']?\$\{?([A-Za-z_]\w*)(?::?-)?\}?[\"']?\s*(?:\]\]?)?$")
_QUOTED = r"'[^']*'|\"(?:\\.|[^\"\\])*\""
_JOINTS = re.compile(rf"{_QUOTED}|(&&|\|\||;(?=\s|$)|\|(?=\s)|(?<![>&\d])&(?=\s*$))")
_VARIABLE = re.compile(
    r"\$(?:\{([A-Za-z_]\w*|[@*#1-9])(?:\[@\]|\[\*\])?(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*)|([@*#1-9]))"
)


def is_computed(value: str) -> bool:
    """Whether only a shell knows it: `$(hostname)`, `${A%:*}`, a name that nothing here gives a value."""
    return "$" in value or "`" in value


def unseen(text: str) -> str:
    """The first line that may set variables which the text does not show: another file, eval, read.

    >>> unseen("source venv/bin/activate\\n. ./cluster.env"), unseen("A=1")
    ('. ./cluster.env', '')
    """
    for line in _lines(text):
        found = _READS.match(line)
        if found and not _HOOKS.match(line) and not (found[1] and _PATHS_ONLY.search(found[1].strip("\"'"))):
            return line[:80]
    return ""


@dataclass(frozen=True, slots=True)
class Script:
    """The last command in the text that looks like training, else another script that it runs; None where
    there is neither. `variables` are those set before it, `folder` where the last `cd` leads, "" for none or
    one that only the shell knows."""

    words: list[str] | None
    variables: dict[str, str]
    folder: str = ""


def read_script(
    text: str, arguments: Sequence[str], environment: Mapping[str, str], *, certain: bool = False
) -> Script:
    """Pure: no shell is run.

    With `certain` a variable stays `$NAME` that has no value here, is given another one under a condition, or
    may get one from a file that is not seen; without it the last value is taken, or none.

    >>> read_script("export NPROC_PER_NODE=8\\nTP=2\\nmegatron sft \\\\\\n  --tensor_model_parallel_size $TP", [], {})
    Script(words=['megatron', 'sft', '--tensor_model_parallel_size', '2'], variables={'NPROC_PER_NODE': '8', 'TP': '2'}, folder='')
    >>> read_script("cd /app && bash train.sh 2", [], {}).words
    ['bash', 'train.sh', '2']
    """
    reader = _Reader(arguments, environment, certain, "all" if unseen(text) else "without default")
    for line in _lines(text):
        reader.read(line)
    return Script(reader.training or reader.script, reader.variables, reader.folder)


class _Reader:
    """What the lines so far have set and started. `open_names`: see `_filled`."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], certain: bool, open_names: str
    ) -> None:
        self.variables: dict[str, str] = {}
        self.training: list[str] | None = None  # the last command that looks like one
        self.script: list[str] | None = None  # the last script that is run
        self.folder = ""
        self._certain, self._open_names = certain, open_names if certain else ""
        self._depth = 0  # of if, for, case ...
        self._default = ""  # the variable that is given a value here only where it has none
        self._known = {**environment, **{str(at): word for at, word in enumerate(arguments, 1)}}
        self._known["@"] = self._known["*"] = shlex.join(arguments)
        self._known["#"] = str(len(arguments))

    def read(self, line: str) -> None:
        first_word = line.split(maxsplit=1)[0].rstrip("{(;")
        self._depth += (first_word in _OPENS) - (first_word in _CLOSES)
        if first_word == "if" or not self._depth:
            self._default = unset[1] if (unset := _IF_UNSET.match(line)) else ""
        if array := _ARRAY.match(line):
            text = line[array.end() :].rpartition(")")[0].replace("\n", " ")
            before = self._known.get(array[1], "") + " " if "+=" in array[0] else ""
            self._known[array[1]] = before + _filled(text, self._known, self._open_names)
            return
        words = _words(line, self._known, self._open_names)
        if words and words[0] in ("else", "elif"):
            self._default = ""
        while words and words[0] in ("then", "do", "else", "{"):
            words = words[1:]
        while words and (assignment := _ASSIGNMENT.fullmatch(words[0])) and "(" not in words[0][:2]:
            self._keep(assignment[1], assignment[2])
            words = words[1:]
        if words[:1] == ["export"]:
            for name, equals, value in (word.partition("=") for word in words[1:]):
                if equals:
                    self._keep(name, value)
        elif words:
            self._start(words)

    def _keep(self, name: str, value: str) -> None:
        if self._certain and self._depth == 1 and name == self._default:
            value = self._known.get(name) or value
        elif self._certain and self._depth > 0 and self._known.get(name) != value:
            value = f"${name}"
        self.variables[name] = self._known[name] = value

    def _start(self, words: list[str]) -> None:
        if (training := _started(words)) is not None:
            self.training = training
        elif words[0] == "cd" and not self._depth:
            self.folder = "" if is_computed("".join(words[1:2])) else posixpath.join(self.folder, *words[1:2])
        elif is_shell(words[0]) and any(word.endswith(".sh") for word in words[:3]):
            self.script = words


def _started(words: list[str]) -> list[str] | None:
    """From the word on that starts a training; None where none does."""
    names = [word.rpartition("/")[2] for word in words]
    first = next((index for index, name in enumerate(names[:8]) if name in _STARTS), None)
    trains = any(word.startswith("--") for word in words) and "pip" not in words[:3]
    if first is None or not trains or (words[0] in ENGINES and "run" not in words[1:3]):
        return None
    return words[first:]


def _lines(text: str) -> list[str]:
    """Logical lines: comments left out, continued lines and arrays over several lines joined, `a && b` and
    `a; b` apart."""
    lines: list[str] = []
    held = ""
    for raw in text.splitlines():
        line = "" if raw.lstrip().startswith("#") else re.sub(r"\s#[^'\"]*$", "", raw)
        if line.rstrip().endswith("\\"):
            held += line.rstrip()[:-1] + " "
            continue
        held += line
        if _ARRAY.match(held.strip()) and ")" not in held:
            held += "\n"
            continue
        lines += _parts(held)
        held = ""
    if held.strip():
        lines.append(held.strip())
    return lines


def _parts(line: str) -> Iterator[str]:
    """The commands of one line; one that only runs after a test as `if` writes it.

    >>> list(_parts('cd /app && [ -z "$A" ] && A=1; b | c'))
    ['cd /app', 'if [ -z "$A" ]', 'A=1', 'fi', 'b', 'c']
    >>> list(_parts("docker run img bash -c 'cd /app && swift sft'; b"))
    ["docker run img bash -c 'cd /app && swift sft'", 'b']
    """
    joints = [match for match in _JOINTS.finditer(line) if match[1]]
    begins = [0, *(match.end() for match in joints)]
    ends = [*(match.start() for match in joints), len(line)]
    tested = False
    for begin, end, joint in zip(begins, ends, [*(match[1] for match in joints), ""], strict=True):
        piece = line[begin:end].strip()
        if not tested and joint in ("&&", "||") and piece.startswith(("[", "test ")):
            tested = True
            yield f"if {piece}" if joint == "&&" else f"if ! {piece}"
        elif piece:
            yield piece
        if tested and joint not in ("&&", "||"):
            tested = False
            yield "fi"


def _filled(text: str, known: Mapping[str, str], open_names: str = "") -> str:
    """`open_names`: which names without a value stay as they are written ("": none)."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3] or match[4]
        if name not in known and (
            open_names == "all" or (open_names and match[2] is None and name not in ("@", "*"))
        ):
            return match[0]
        return known.get(name) or (match[2] or "")

    for _ in range(4):  # a variable may hold another
        filled = _VARIABLE.sub(value, text)[:100_000]
        if filled == text:
            break
        text = filled
    return text


def _words(line: str, known: Mapping[str, str], open_names: str = "") -> list[str]:
    text = _filled(line.replace('"$@"', "$@").replace('"${', "${").replace('}"', "}"), known, open_names)
    try:
        return shlex.split(re.sub(r"\d?>+\s*\S+|2>&1", "", text))
    except ValueError:  # quotes that do not close on this line: `A="$(b | c)"` is cut at its pipe
        return [text] if _ASSIGNMENT.fullmatch(text) and is_computed(text) else []
