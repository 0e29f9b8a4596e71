"""CMD's flags against the ms-swift that it will run: which it does not take, what became of them, and which exclude each other.
Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diag.knowledge import swift_flags as known
from diag.knowledge import table
from diag.knowledge.swift_flags import Version
from diag.launch.launchers.command import Command
from diag.launch.launchers.command.flags import Flags, parse_flags
from diag.launch.launchers.command.names import MODULES
from diag.preflight.line import Line, line

_SWIFTS = ("swift", "megatron")
_CONFIG = (".json", ".yaml", ".yml")  # swift/cli/main.py, parse_yaml_args, since 4.1; JSON before that, too
_SCRIPT = re.compile(r"swift/(?:cli|llm)/(?:\w+/)?\w+\.py$")
# swift/cli/main.py: `--config FILE` from 3.10 to 4.0, `swift sft FILE` from 4.1 on (a JSON file there before 4.1, too)
_BY_FLAG, _IN_PLACE = (3, 10), (4, 1)
_MOST_BYTES = 1 << 20
_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Trainer:
    """The ms-swift of CMD. `version` is None where it is not known, and `why` says so; `said` names it otherwise. `flags`
    are what its own sources say that the command takes, None where these could not be read."""

    version: Version | None = None
    said: str = ""
    why: str = ""
    flags: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """A file that stands in place of flags, given by --config or else right after the command; `read` tells whether it is
    by the command itself, which alone reads one."""

    path: str
    by_flag: bool
    read: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A command of ms-swift: "megatron", "rlhf" and its flags, with those of its file."""

    program: str
    verb: str
    flags: Flags
    config: Config | None = None

    @property
    def command(self) -> str:
        return f"{self.program} {self.verb}"

    @property
    def names(self) -> list[str]:
        return self.flags.names

    def message(self, names: Sequence[str], taken: frozenset[str]) -> str:
        """What the parser will say of these, which are not taken."""
        for name in names:
            if matches := known.abbreviated(name, taken):
                return _short(f"error: ambiguous option: --{name} could match {_named(matches)}")
        words: list[str] = []
        for name in names:
            words += [f"--{name}", *self.flags.words(name)]
        return _short(f"ValueError: remaining_argv: {words}")


def call_of(command: Command) -> Call | None:
    """None where CMD is no command of ms-swift, as far as it could be read."""
    program, verb, words = command.program, command.verb, list(command.words)
    line = command.line
    for at, word in enumerate(line):
        name = MODULES.get(word, word.rpartition("/")[2])
        if name in _SWIFTS:
            program, verb, words = (
                name,
                "".join(line[at + 1 : at + 2]).replace("_", "-"),
                list(line[at + 2 :]),
            )
            break
        if _SCRIPT.search(word):
            words = list(line[at + 1 :])
            break
    if program not in _SWIFTS or not known.known(f"{program} {verb}"):
        return None
    by_ray = (
        "--use_ray" in words
    )  # swift/ray/megatron: its file has groups of workers, with flags of their own
    config = _config(words, by_command=command.chain[-1:] == (program,))
    if config is not None and by_ray:
        return None
    if config is not None:
        words = [*_config_words(command, config.path), *words]
    return Call(program, verb, parse_flags(words, command.environment, command.folder), config)


def _config(words: list[str], *, by_command: bool) -> Config | None:
    """Takes it out of the words."""
    if "--config" in words[:-1]:
        at = words.index("--config")
        path = words[at + 1]
        del words[at : at + 2]
        return Config(path, by_flag=True, read=by_command)
    if words and words[0].endswith(_CONFIG):
        return Config(words.pop(0), by_flag=False, read=by_command)
    return None


def _config_words(command: Command, path: str) -> Iterator[str]:
    """As swift/cli/main.py makes them of a file; nothing where it cannot be read here."""
    import yaml

    here = path if command.container is None else command.container.path_here(path)
    try:
        with (command.folder / (here or "")).open("rb") as file:
            values = yaml.safe_load(file.read(_MOST_BYTES))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return
    for name, value in values.items() if isinstance(values, dict) else ():
        if name != "ENV":
            yield f"--{name}"
            yield from map(str, value) if isinstance(value, list) else [str(value)]


def check_flags(call: Call, trainer: Trainer) -> Iterator[Line]:
    """One line at least: that they fit, what does not, or why that is not known."""
    found = list(_flag_lines(call, trainer))
    found += _config_lines(call, trainer)
    found += _value_lines(call, trainer)
    yield from found
    if not found:
        yield line("flags.fits", command=call.command, trainer=trainer.said, count=len(call.names))


def _flag_lines(call: Call, trainer: Trainer) -> Iterator[Line]:
    version, ends = trainer.version, _ends()
    if version is None:
        yield from _of_any_version(call, trainer.why)
        return
    recorded = version in known.versions()
    if recorded and not known.has_command(call.command, version):
        others = [one for one in known.versions() if known.has_command(call.command, one)]
        span, wanted = known.span(others), _specifier(others)
        named = {"command": call.command, "verb": call.verb, "trainer": trainer.said}
        yield line("flags.no-command", span=span, wanted=wanted, **named)
        return
    if trainer.flags is None and not recorded:
        yield line("flags.version-unrecorded", command=call.command, trainer=trainer.said, **ends)
        return
    taken = trainer.flags if trainer.flags is not None else known.flags(call.command, version)
    untaken = [name for name in call.names if not known.accepts(name, taken)]
    if not untaken:
        return
    ignored = known.accepts("ignore_args_error", call.names) and call.flags.flag("ignore_args_error")
    of_other = any(known.accepting(call.command, name) for name in untaken)
    key = "ignored" if ignored else "untaken-of-other" if of_other else "untaken"
    rows = [_instead(call, name, taken) for name in untaken]
    written_for = [one for one in known.written_for(call.command, call.names) if one != version]
    if written_for and all(known.accepting(call.command, name) for name in untaken):
        rows.append(
            f"or the ms-swift that CMD is written for: pip install 'ms-swift{_specifier(written_for)}'"
        )
    yield line(
        f"flags.{key}",
        command=call.command,
        trainer=trainer.said,
        names=_named(untaken),
        message=call.message(untaken, taken),
        instead="\n".join(rows),
    )


def _of_any_version(call: Call, why: str) -> Iterator[Line]:
    """What can be said where the version is not known."""
    everything = frozenset().union(*(known.flags(call.command, one) for one in known.versions()))
    never = [name for name in call.names if not known.accepts(name, everything)]
    rows = {name: _instead(call, name, everything) for name in never}
    sure = [name for name in never if rows[name] != _plain(name)]
    named = {"command": call.command, **_ends()}
    if sure:
        instead = "\n".join(rows[name] for name in sure)
        yield line(
            "flags.of-none",
            names=_named(sure),
            message=call.message(sure, frozenset()),
            instead=instead,
            **named,
        )
    if rest := [name for name in never if name not in sure]:
        yield line("flags.of-none-known", names=_named(rest), **named)
    fitting = known.written_for(call.command, call.names)
    if not fitting:
        yield line("flags.of-no-one", spans=_spans(call), **named)
    elif len(fitting) < sum(known.has_command(call.command, one) for one in known.versions()):
        yield line("flags.unknown-version", why=why, span=known.span(fitting), **named)
    else:
        yield line("flags.unknown-version-fits", why=why, **named)


def _instead(call: Call, name: str, taken: frozenset[str]) -> str:
    """What to write in place of a flag."""
    value = " ".join(call.flags.words(name))
    otherwise = table("swift_flag_advice")["otherwise"].get(name, "")
    there = known.accepting(call.command, name)
    had = f", which {known.span(there)} take{'' if len(there) > 1 else 's'}" if there else ""
    wanted = re.findall(r"--(\w+)", otherwise)
    if otherwise and all(known.accepts(one, taken) for one in wanted):
        return f"in place of --{name}{had}: {otherwise.format(value=value, command=call.command)}"
    if same := known.instead(name, taken):
        return f"--{same} in place of --{name}{had}"
    if other := _command_with(call, name):
        return f"leave --{name} out: it is a flag of `{other}`"
    if near := known.near(name, taken):
        return f"did you mean --{near} by --{name}?"
    if there:
        return f"leave --{name} out{had}"
    return _plain(name)


def _command_with(call: Call, name: str) -> str:
    """Another command that takes the flag, of the other program or of another kind; "" where this one does in some
    version."""
    if known.takes(call.command, name):
        return ""
    others = (f"{program} {verb}" for verb in (call.verb, "rlhf", "sft", "infer") for program in _SWIFTS)
    return next((other for other in others if known.takes(other, name)), "")


def _plain(name: str) -> str:
    return f"leave --{name} out: no version of ms-swift that diag knows takes it"


def _spans(call: Call) -> str:
    """The flags that some versions do not take, with those that do."""
    everything = sum(known.has_command(call.command, one) for one in known.versions())
    spans: dict[str, list[str]] = {}
    for name in call.names:
        there = known.accepting(call.command, name)
        if there and len(there) < everything:
            spans.setdefault(known.span(there), []).append(f"--{name}")
    return "; ".join(f"{' '.join(names)} ({span})" for span, names in spans.items())


def _value_lines(call: Call, trainer: Trainer) -> Iterator[Line]:
    """Values that this version does not take, and flags that exclude each other."""
    version = trainer.version
    fitting = (version,) if version is not None else known.written_for(call.command, call.names)
    for row in table("swift_flag_advice")["values"]:
        if call.command not in row["of"].split(", ") or not _meets(call.flags, row["when"]):
            continue
        concerned = [one for one in fitting if _concerns(row, one)]
        if not concerned:
            continue
        values = {name: " ".join(call.flags.words(name)) for name in row["when"]}
        said, advice = row["said"].format(**values), row["do"].format(**values)
        key = "value" if len(concerned) == len(fitting) else "value-of-some"
        yield line(f"flags.{key}", said=said, advice=advice)


def _config_lines(call: Call, trainer: Trainer) -> Iterator[Line]:
    """A file that this version does not read, or not there."""
    config, version = call.config, trainer.version
    if config is None or (version is None and config.read):
        return
    if not config.by_flag and config.path.endswith(".json"):
        return
    of_files = version is None or version >= _IN_PLACE
    if config.read and version is not None and of_files != config.by_flag and version >= _BY_FLAG:
        return
    advice = f"`{call.command} {config.path}`" if of_files else f"`{call.command} --config {config.path}`"
    if version is not None and version < _BY_FLAG:
        advice = f"write what it holds as flags, or install ms-swift {known.dotted(_BY_FLAG)} or later"
    given = f"--config {config.path}" if config.by_flag else config.path
    message = f"ValueError: remaining_argv: {given.split()}"
    key = "no-file" if config.read else "file-of-script"
    named = {"trainer": trainer.said, "command": call.command, "given": given}
    yield line(f"flags.{key}", message=message, advice=advice, **named)


def _meets(flags: Flags, when: Mapping[str, str]) -> bool:
    given = {name: " ".join(flags.words(name)) for name in when if name in flags}
    default = {
        "rlhf_type": "dpo"
    }  # of `swift rlhf` and `megatron rlhf`, up to the versions that the rows are of
    values = {name: given.get(name, default.get(name)) for name in when}
    return all(value is not None and re.fullmatch(when[name], value) for name, value in values.items())


def _concerns(row: Mapping[str, Any], one: Version) -> bool:
    since, before = known.version(row.get("since", "")), known.version(row.get("before", ""))
    return (since is None or one >= since) and (before is None or one < before)


def _specifier(of: Sequence[Version]) -> str:
    """
    >>> _specifier([(3, 7), (3, 8)]), _specifier([(4, 6)])
    ('>=3.7,<3.9', '>=4.6')
    """
    everything = known.versions()
    newest = max(of)
    oldest = newest  # of the newest stretch
    while (at := everything.index(oldest)) > 0 and everything[at - 1] in of:
        oldest = everything[at - 1]
    if newest == everything[-1]:
        return f">={known.dotted(oldest)}"
    return f">={known.dotted(oldest)},<{known.dotted(everything[everything.index(newest) + 1])}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"--{name}" for name in names)


def _ends() -> dict[str, str]:
    return {"first": known.dotted(known.versions()[0]), "last": known.dotted(known.versions()[-1])}
