"""The training command in a shell script, from its text: assignments, exports, arrays, continued
lines. No shell is run, so what a script computes stays unknown."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
# What a here-document holds is no command, unless it is handed to a shell, and then it is not read either.
_HEREDOC = re.compile(
    r"(?<!<)<<-?(?!<)\s*([\"']?)(\w+)\1([^\n]*)\n.*?^\s*\2[ \t]*$", re.DOTALL | re.MULTILINE
)
# A blank, a pipe or a quote within `$(...)` is no end of a word: other characters take its place until words are cut.
_INNER = {ord(char): 0xE000 + number for number, char in enumerate(" \t\n|;&<>#\"'()")}
_OUTER = {after: before for before, after in _INNER.items()}
_CASE = re.compile(r"\(?[^()]*\)\s*")
_ASSIGNED = re.compile(r"\$\{([A-Za-z_]\w*):?=([^{}]*)\}")
_DECLARES = frozenset({"declare", "typeset", "local", "readonly"})
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
    there is neither. `variables` are those set before it and handed on, `kept_back` those that are set without
    export, which no program sees, and `unset` those that are taken away. `folder` is where the last `cd` leads, ""
    for none or one that only the shell knows."""

    words: list[str] | None
    variables: dict[str, str]
    folder: str = ""
    kept_back: dict[str, str] = field(default_factory=dict)
    unset: frozenset[str] = frozenset()


def read_script(
    text: str, arguments: Sequence[str], environment: Mapping[str, str], *, certain: bool = False
) -> Script:
    """Pure: no shell is run.

    With `certain` a variable stays `$NAME` that has no value here, is given another one under a condition, or
    may get one from a file that is not seen; without it the last value is taken, or none.

    >>> found = read_script("export NPROC_PER_NODE=8\\nTP=2\\nmegatron sft \\\\\\n  --tensor_model_parallel_size $TP", [], {})
    >>> found.words, found.variables, found.kept_back
    (['megatron', 'sft', '--tensor_model_parallel_size', '2'], {'NPROC_PER_NODE': '8'}, {'TP': '2'})
    >>> read_script("cd /app && bash train.sh 2", [], {}).words
    ['bash', 'train.sh', '2']
    """
    reader = _Reader(arguments, environment, certain, "all" if unseen(text) else "without default")
    for line in _lines(text):
        reader.read(line)
    words, gone = reader.training or reader.script, frozenset(reader.unset)
    return Script(words, reader.variables, reader.folder, reader.kept_back, gone)


class _Reader:
    """What the lines so far have set and started. `open_names`: see `_filled`."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], certain: bool, open_names: str
    ) -> None:
        self.variables: dict[str, str] = {}
        self.kept_back: dict[str, str] = {}
        self.unset: set[str] = set()
        self.training: list[str] | None = None  # the last command that looks like one
        self.script: list[str] | None = None  # the last script that is run
        self.folder = ""
        self._certain, self._open_names = certain, open_names if certain else ""
        self._depth = self._cases = 0  # of if, for, case ..., and of case alone
        self._default = ""  # the variable that is given a value here only where it has none
        self._exported, self._exports_all = set(environment), False
        self._known = {**environment, **{str(at): word for at, word in enumerate(arguments, 1)}}
        self._known["@"] = self._known["*"] = shlex.join(arguments)
        self._known["#"] = str(len(arguments))

    def read(self, line: str) -> None:
        first_word = line.split(maxsplit=1)[0].rstrip("{(;")
        self._depth += (first_word in _OPENS) - (first_word in _CLOSES)
        if self._cases and first_word != "esac":
            line = _CASE.sub("", line, count=1) if _CASE.match(line) else line
        self._cases += (first_word == "case") - (first_word == "esac")
        line = line.rstrip("; ")
        if not line:
            return
        if first_word == "if" or not self._depth:
            self._default = unset[1] if (unset := _IF_UNSET.match(line)) else ""
        if array := _ARRAY.match(line):
            text = line[array.end() :].rpartition(")")[0].replace("\n", " ")
            before = self._known.get(array[1], "") + " " if "+=" in array[0] else ""
            self._known[array[1]] = before + _filled(text, self._known, self._open_names)
            return
        for name, value in _ASSIGNED.findall(line):  # `: ${A:=1}`
            if not self._known.get(name):
                self._keep(name, _filled(value, self._known, self._open_names))
        words = _words(line, self._known, self._open_names)
        if words and words[0] in ("else", "elif"):
            self._default = ""
        while words and words[0] in ("then", "do", "else", "{"):
            words = words[1:]
        given: list[tuple[str, str]] = []
        while words and (assignment := _ASSIGNMENT.fullmatch(words[0])) and "(" not in words[0][:2]:
            if words[0].startswith(("export", "declare")):  # a line that could not be cut into words
                self._exported.add(assignment[1])
            given.append((assignment[1], assignment[2]))
            words = words[1:]
        if not words:
            for name, value in given:
                self._keep(name, value)
        elif words[0] in ("export", *_DECLARES):
            self._declare(words)
        elif words[0] == "unset":
            for name in words[1:]:
                self._unset(name)
        elif words[0] == "set":
            names = " ".join(words[1:])
            self._exports_all = (
                self._exports_all or "-a" in words or "-o allexport" in names
            ) and "+a" not in words
        else:
            self._start(words, given)

    def _declare(self, words: list[str]) -> None:
        exports = words[0] == "export" or any(re.fullmatch(r"-\w*x\w*", word) for word in words[1:])
        for name, equals, value in (word.partition("=") for word in words[1:]):
            if exports:
                self._exported.add(name)
            if equals:
                self._keep(name, value)
            elif name in self._exported and name in self.kept_back:
                self.variables[name] = self.kept_back.pop(name)

    def _unset(self, name: str) -> None:
        if self._certain and self._depth > 0:
            self._keep(name, "")  # under a condition: not known
            return
        for names in (self.variables, self.kept_back, self._known):
            names.pop(name, None)
        self._exported.discard(name)
        self.unset.add(name)

    def _keep(self, name: str, value: str, *, hands_on: bool = False) -> None:
        if self._certain and self._depth == 1 and name == self._default:
            value = self._known.get(name) or value
        elif self._certain and self._depth > 0 and self._known.get(name) != value:
            value = f"${name}"
        self._known[name] = _with_inner_words(value)
        hands_on = hands_on or self._exports_all or name in self._exported
        (self.variables if hands_on else self.kept_back)[name] = value
        if hands_on:
            self.kept_back.pop(name, None)
            self.unset.discard(name)

    def _start(self, words: list[str], given: list[tuple[str, str]]) -> None:
        """A command, with the variables that are given to it alone."""
        names = [word.rpartition("/")[2] for word in words]
        runs = 0 if is_shell(words[0]) else names.index("srun") if "srun" in names else None
        if (training := _started(words)) is not None:
            self.training = training
            # `env A=1 torchrun`, `sudo -E A=1 torchrun`
            before = words[: len(words) - len(training)]
            given += [(found[1], found[2]) for word in before if (found := _ASSIGNMENT.fullmatch(word))]
        elif words[0] == "cd" and not self._depth:
            self.folder = "" if is_computed("".join(words[1:2])) else posixpath.join(self.folder, *words[1:2])
        elif runs is not None and any(word.endswith(".sh") for word in words[runs:][:12]):
            self.script = words[runs:]
        else:
            return
        for name, value in given:
            self._keep(name, value, hands_on=True)


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
    plain = "\n".join("" if raw.lstrip().startswith("#") else raw for raw in text.splitlines())
    for raw in _with_inner_words(_HEREDOC.sub(r"\3", plain)).splitlines():
        line = re.sub(r"\s#[^'\"]*$", "", raw)
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


_LONGEST_INNER = 2000


def _with_inner_words(text: str) -> str:
    """Each `$(...)` as one word, until `_words` has cut the line.

    >>> _words(_with_inner_words("A=$(nvidia-smi -L | wc -l) b"), {})
    ['A=$(nvidia-smi -L | wc -l)', 'b']
    """
    begin = text.find("$(")
    while begin >= 0:
        depth, end = 0, 0
        for at, char in enumerate(text[begin + 1 : begin + _LONGEST_INNER], begin + 1):
            depth += (char == "(") - (char == ")")
            if not depth:
                end = at
                break
        if end:
            inner = text[begin + 2 : end].translate(_INNER)
            text = text[: begin + 2] + inner + text[end:]
        begin = text.find("$(", begin + 2)
    return text


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
        words = shlex.split(re.sub(r"\d?>+\s*\S+|2>&1", "", text))
        return [word.translate(_OUTER) for word in words]
    except ValueError:  # quotes that do not close on this line: `A="$(b | c)"` is cut at its pipe
        return [text] if _ASSIGNMENT.fullmatch(text) and is_computed(text) else []
