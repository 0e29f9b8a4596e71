"""`diag completion SHELL`: the script by which a shell completes the words of `diag`, made from the parsers
of all verbs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish", "tcsh")

# By what an option's value is called in its help.
_FILES = frozenset({"FILE", "PATH"})
_DIRECTORIES = frozenset({"DIR"})
_WORDS = {"auto|off|HOSTS": ("auto", "off"), "RANK": ("all",)}
_COMMAND = "_diag_command"  # the function that completes what stands after `--`


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        choices=SHELLS,
        metavar="SHELL",
        help="bash, zsh, fish or tcsh; its first lines say where it belongs",
    )


def run(args: argparse.Namespace) -> int:
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    import shtab

    from diag.cli.main import make_parser

    parser = make_parser()
    for action in _actions(parser):
        if action.nargs == argparse.REMAINDER:
            action.complete = {"bash": "_shtab_compgen_files", "zsh": _COMMAND, "tcsh": "c", "fish": ""}  # type: ignore[attr-defined]
        elif action.dest == "id":
            action.choices = _findings()
        elif action.metavar in _WORDS:
            action.choices = _WORDS[str(action.metavar)]
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    body = shtab.complete(parser, shell, preamble=_ZSH if shell == "zsh" else "")
    # Shtab's own directions name folders that no shell looks into by itself.
    body = re.sub(r"(?m)^# (AUTOMATICALLY GENERATED|Usage:|\d\) |   (source|fpath=)|See also:).*\n", "", body)
    first, rest = ("", body) if not body.startswith("#compdef") else body.split("\n", 1)
    return "\n".join(
        filter(None, [first, _WHERE[shell].rstrip(), rest.strip("\n"), _AFTER.get(shell, "").rstrip()])
    )


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)


def _findings() -> tuple[str, ...]:
    from diag.outputs import manual

    return tuple(manual.ids())


_WHERE = {
    "bash": """# Completion of diag for bash. For you:
#   mkdir -p ~/.local/share/bash-completion/completions
#   diag completion bash > ~/.local/share/bash-completion/completions/diag
# or without the package bash-completion, in ~/.bashrc: eval "$(diag completion bash)"
""",
    "zsh": """# Completion of diag for zsh: into a folder of $fpath, before compinit runs:
#   mkdir -p ~/.zfunc && diag completion zsh > ~/.zfunc/_diag
#   in ~/.zshrc: fpath=(~/.zfunc $fpath); autoload -Uz compinit; compinit
""",
    "fish": """# Completion of diag for fish: diag completion fish > ~/.config/fish/completions/diag.fish
""",
    "tcsh": """# Completion of diag for tcsh: diag completion tcsh > ~/.diag.tcsh, and in ~/.tcshrc: source ~/.diag.tcsh
""",
}

# What stands after `--` belongs to another command: its own completion is asked, where the shell has one.
_AFTER = {
    "bash": """
# after `--`: commands, then what the command itself completes (with the package bash-completion), else files
_diag_command() {
  local first=$1 word="${COMP_WORDS[COMP_CWORD]}" offset
  compopt -o filenames 2>/dev/null || :
  if (( COMP_CWORD == first )); then
    mapfile -t COMPREPLY < <(compgen -c -- "$word"; compgen -f -- "$word")
    return
  fi
  for offset in _comp_command_offset _command_offset; do
    if declare -F "$offset" >/dev/null; then
      "$offset" "$first"
      return
    fi
  done
  mapfile -t COMPREPLY < <(compgen -f -- "$word")
}

_diag() {
  local index
  COMPREPLY=()
  for (( index = 2; index < COMP_CWORD; index++ )); do
    if [[ ${COMP_WORDS[index]} == -- ]]; then
      _diag_command $((index + 1))
      return
    fi
  done
  _shtab_diag "$@"
}

complete -o bashdefault -F _diag diag
""",
    "fish": """
# after `--`: what the command itself completes
function __diag_command
  set -l words (commandline -opc)
  set -l at (contains -i -- -- $words)
  or return
  set -e words[1..$at]
  complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end
complete -c diag -n 'contains -- -- (commandline -opc)' -xa '(__diag_command)'
""",
}

_ZSH = """
# after `--`: commands, then what the command itself completes
_diag_command() {
  if [[ $words[1] == -- ]]; then
    shift words
    (( CURRENT-- ))
  fi
  _normal
}
"""
