"""The `diag` command: parses the line, runs the verb, prints errors as `error:` and `hint:`."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn, TextIO

from diag import __version__
from diag.launch.isolated import given_encoding
from diag.text import colour
from diag.text.errors import DiagError

# Verb -> (module, one-line help). The module is imported only when its verb is used: `diag --help` stays
# quick.
VERBS: dict[str, tuple[str, str]] = {
    "run": ("diag.cli.run", "run CMD unchanged and watch its ranks"),
    "watch": ("diag.cli.watch", "watch a job that already runs"),
    "top": ("diag.cli.top", "the run in the terminal: findings, ranks, stacks, time line"),
    "dump": ("diag.cli.dump", "evidence and stacks of every rank, now"),
    "flame": ("diag.cli.flame", "flame graph of a rank, or of all ranks merged"),
    "runs": ("diag.cli.runs", "the runs of the past: how each ended, what was found; remove old ones"),
    "diff": ("diag.cli.diff", "what differs between two runs: versions, nodes, environment, times"),
    "replay": ("diag.cli.replay", "the same checks over evidence on disk"),
    "report": ("diag.cli.report", "the page of a run as one file, to send"),
    "doctor": ("diag.cli.doctor", "check machine, limits and environment before the run"),
    "estimate": ("diag.cli.estimate", "GPU and host memory that CMD will need, the save included"),
    "notify": ("diag.cli.notify", "send a test message to where `diag run --notify` will write"),
    "mcp": ("diag.cli.mcp", "a server by which agents ask what diag knows of a run"),
    "rules": ("diag.cli.rules", "test and list the rules for lines of logs"),
    "explain": ("diag.cli.explain", "the manual page of a finding"),
    "completion": ("diag.cli.completion", "the script by which your shell completes diag's commands"),
}

_WITH_COMMAND = ("run", "doctor", "estimate")  # those that take `-- CMD ...`

# Three doors, within 80 columns.
_DOORS = """Diagnostics for distributed training: which rank, why, on what evidence, and what to change.

it hangs now:
  diag dump               verdict and bundle of the job here, in 20 to 40 s
  diag dump --pid PID     the same of one of several jobs
  diag watch --pid PID    go on watching it; then `diag top`, `diag flame RANK`

it died:
  diag replay train.log   which rank died first, of what; also FOLDER, -1
  diag explain 'LINE'     what a line of the log means; 'Xid 79', ENOSPC

before the run:
  diag doctor -- CMD      what will stand in its way, and what to change
  diag estimate -- CMD    GPU and host memory that it will need
  diag run -- CMD         start it, watched from its first second"""

_EPILOG = """`diag help VERB` and `diag VERB --help` list a verb's options; `diag version` prints the version.

exit codes: 0 clear, 1 diag itself failed, 2 usage or nothing to read, 10 findings of level warning or above,
open or over by then; `diag run` returns CMD's own code (128+n when CMD died of signal n)."""


class _Parser(argparse.ArgumentParser):
    """Reports what is wrong as diag does everywhere: `error:` and `hint:`."""

    def format_help(self) -> str:
        if sys.stdout is not None and _language(sys.stdout) == "zh":
            from diag.cli.chinese_help import translate

            translate(self)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        _say(DiagError(_reworded(message, self), hint=_near_choice(message) or f"{self.prog} --help"))
        self.exit(2)


def make_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The parser; with `verb` only that one's options are loaded, with None all of them (documentation,
    tests)."""
    parser = _Parser(
        prog="diag",
        description=_DOORS,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"diag {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    parser._positionals.title = "commands"
    for name, (module, text) in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if verb is None or verb == name:
            importlib.import_module(module).add(sub)
            if name in colour.COMMANDS:
                sub.add_argument(
                    "--color",
                    choices=colour.WHEN,
                    default="auto",
                    metavar="WHEN",
                    help="colour diag's own lines: auto (on a terminal; NO_COLOR, FORCE_COLOR), always, never",
                )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = _as_option(list(sys.argv[1:] if argv is None else argv))
    # relative where `python -m diag` was found by `PATH=.venv/bin:$PATH`: our helpers start in /
    if sys.executable:
        sys.executable = os.path.abspath(sys.executable)  # noqa: PTH100 - resolve() would leave a virtual environment
    verb = words[0] if words and words[0] in VERBS else ""
    for stream in (sys.stdout, sys.stderr):  # a log line has any characters, a terminal's encoding may not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                encoding=given_encoding() if sys.flags.isolated else None, errors="backslashreplace"
            )
    parser = make_parser(verb)
    if not words:
        parser.print_help()
        return 2
    try:
        if (not words[0].startswith("-") or words[0] == "--") and not verb:
            raise _no_verb(words)
        args, unknown = parser.parse_known_args(words)
        if unknown:
            raise _not_understood(parser, verb, words, unknown)
        if args.verb is None:
            parser.print_help()
            return 2
        colour.choose(getattr(args, "color", "auto"))
        code: int = importlib.import_module(VERBS[args.verb][0]).run(args)
        if sys.stdout is not None:  # closed by who called
            sys.stdout.flush()
        return code
    except DiagError as error:
        _say(error)
        return error.exit_code
    except BrokenPipeError:
        # `diag replay ... | head`: the reader has ended, nor may Python complain when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130


def _as_option(words: list[str]) -> list[str]:
    """`diag help X` and `diag version` as the options that say the same.

    >>> _as_option(["help", "rules", "list"]), _as_option(["version"]), _as_option(["run", "help"])
    (['rules', 'list', '--help'], ['--version'], ['run', 'help'])
    >>> _as_option(["help", "run", "rm", "x"])
    ['run', '--help']
    """
    if words[:1] == ["help"]:
        # What follows these would be CMD, and be run.
        rest = words[1:2] if words[1:2] and words[1] in (*_WITH_COMMAND, "help") else words[1:]
        rest = [word for word in rest if word != "help"]
        return [*rest, "--help"]
    return ["--version"] if words[:1] == ["version"] else words


def _language(stream: TextIO) -> str:
    """Of help and errors: by --lang anywhere on diag's part of the line, else as of reports. What is wrong with a
    setting is for the command to say."""
    from diag.cli.language import language
    from diag.text.language import language_for

    words = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    chosen = [after for word, after in pairwise(words) if word == "--lang"]
    chosen += [word.partition("=")[2] for word in words if word.startswith("--lang=")]
    try:
        return language_for(stream, chosen[-1] if chosen and chosen[-1] in ("en", "zh") else language())
    except DiagError:
        return "en"


def _say(error: DiagError) -> None:
    # a file's name and a server's words may hold what moves the cursor
    from diag.text.sanitize import clean_lines

    said, hint, heads = str(error), error.hint, ("error: ", "hint: ")
    if sys.stderr is not None and _language(sys.stderr) == "zh":
        from diag.outputs.chinese import by_line

        said, hint, heads = by_line(said, "errors"), by_line(hint, "errors"), ("错误：", "提示：")
    print(f"{heads[0]}{clean_lines(said)}", file=sys.stderr)
    if hint:
        print(f"\n{heads[1]}{clean_lines(hint)}", file=sys.stderr)


def _reworded(message: str, parser: argparse.ArgumentParser) -> str:
    """What argparse reports in its own way: of types, of "arguments"."""
    wrong = re.fullmatch(r"(argument .*): invalid (int|float) value: (.*)", message, re.DOTALL)
    if wrong:
        return f"{wrong[1]}: {wrong[3]} is not a {'whole number' if wrong[2] == 'int' else 'number'}"
    bare = re.fullmatch(r"argument (\S+): expected (?:one|at least one) argument", message)
    if bare:
        long = bare[1].rpartition("/")[2]
        action = next((each for each in parser._actions if long in each.option_strings), None)
        metavar = action.metavar if action is not None and isinstance(action.metavar, str) else "VALUE"
        return f"{long} {metavar}: the {metavar} is missing (one that begins with a dash: {long}=...)"
    missing = message.partition("the following arguments are required: ")[2]
    helps = [action.help or "" for action in parser._actions if missing in (action.metavar, action.dest)]
    return f"{parser.prog} needs {': '.join([missing, *helps])}" if missing else message


def _near_choice(message: str) -> str:
    """For argparse's `invalid choice: 'svgg' (choose from 'svg', 'speedscope')`; its quotes differ by
    Python's version."""
    wrong, _, choices = message.partition("invalid choice: ")[2].partition(" (choose from ")
    if not choices:
        return ""
    from diag.text.suggest import did_you_mean

    return did_you_mean(wrong.strip("'\""), [word.strip("'\"") for word in choices.rstrip(")").split(", ")])


def _no_verb(words: Sequence[str]) -> DiagError:
    import shlex
    import shutil

    from diag.text.suggest import did_you_mean

    hint = did_you_mean(words[0], (*VERBS, "help", "version"), "`diag {}`")
    if words[0] == "--":
        return DiagError(
            "a diag command is missing before `--`", hint=f"diag run {shlex.join(words[:4])}", exit_code=2
        )
    if not hint and shutil.which(words[0]):
        hint = f"to run it under diag: diag run -- {shlex.join(words[:3])}{' ...' if words[3:] else ''}"
    return DiagError(f"unknown command {words[0]!r}", hint=hint or "see diag --help", exit_code=2)


def _not_understood(
    parser: argparse.ArgumentParser, verb: str, words: Sequence[str], unknown: Sequence[str]
) -> DiagError:
    """Options and words of the line that the verb does not have."""
    from diag.text.suggest import did_you_mean

    wrong = next((word for word in unknown if word.startswith("-")), unknown[0])
    name = wrong.partition("=")[0]
    command = f"diag {verb}".rstrip()
    if not wrong.startswith("-"):
        return DiagError(f"{command}: unexpected argument {wrong!r}", hint=f"{command} --help", exit_code=2)
    options = _options(parser, words)
    # Two dashes are in all of them: they would make any two short words alike.
    long = [option[2:] for option in options if option.startswith("--")]
    hint = did_you_mean(name[2:], long, "--{}") if name.startswith("--") else ""
    if not hint and verb in _WITH_COMMAND and "--" not in words:
        hint = f"options of CMD go after `--`: {command} [options] -- CMD ..."
    return DiagError(
        f"{command}: unknown option {name}", hint=hint or f"{command} --help lists them", exit_code=2
    )


def _options(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Those that this line may have: of the verb, and of the verb below it (`diag rules list`)."""
    options: list[str] = []
    for action in parser._actions:
        options += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for index, word in enumerate(words):
                if word in action.choices:
                    return _options(action.choices[word], words[index + 1 :]) or options
    return options


if __name__ == "__main__":
    sys.exit(main())
