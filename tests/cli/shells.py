"""Real shells asked for completions, as a person's TAB asks them."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import time
from pathlib import Path

SCRIPT_OF = {"bash": "diag.bash", "zsh": "_diag", "fish": "diag.fish"}


def bash(script: Path, line: str, cwd: Path) -> list[str]:
    """What bash puts into COMPREPLY for this line; a line that ends in a space begins a new word."""
    words = shlex.split(line)
    if line.endswith(" "):
        words.append("")
    asked = (
        f"source {script}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; COMP_LINE={shlex.quote(line)};"
        f" COMP_POINT={len(line)}; _diag diag; (( ${{#COMPREPLY[@]}} )) && printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], cwd=cwd, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def fish(script: Path, line: str, cwd: Path) -> list[str]:
    asked = f"source {script}; complete -C {shlex.quote(line)}"
    done = subprocess.run(
        ["fish", "--no-config", "-c", asked],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "HOME": str(script.parent)},
    )
    assert done.stderr == ""
    return [row.partition("\t")[0] for row in done.stdout.splitlines()]


def zsh(script: Path, line: str, cwd: Path) -> list[str]:
    """Of an interactive zsh on a pseudo-terminal: every match that its completion system was given.

    A wrapper of compadd tells them: there is no command of zsh for it.
    """
    told = script.parent / "told"
    setup = f"""
fpath=({script.parent} $fpath); autoload -Uz compinit; compinit -u -D
compadd() {{
  [[ ${{@[1,(i)(-|--)]}} == *-(O|A|D)\\ * ]] && {{ builtin compadd "$@"; return }}
  typeset -a __hits; builtin compadd -A __hits "$@"; print -rl -- $__hits >> {told}; builtin compadd "$@"
}}
tell() {{ : > {told}; zle complete-word; print -r -- DONE >> {told} }}
zle -C complete-word complete-word _main_complete; zle -N tell; bindkey '^T' tell; unsetopt beep; PS1='> '; print READY
"""
    script.parent.joinpath("setup.zsh").write_text(setup)
    told.unlink(missing_ok=True)
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.environ.update(TERM="dumb", ZDOTDIR=str(script.parent))
        os.execvp("zsh", ["zsh", "-f", "-i"])
    try:
        os.write(fd, f"source {script.parent}/setup.zsh\n".encode())
        _read_until(fd, rb"\nREADY")
        os.write(fd, line.encode() + b"\x14")
        end = time.monotonic() + 30
        while not (told.exists() and told.read_text().endswith("DONE\n")):
            assert time.monotonic() < end, "zsh did not complete"
            _read_some(fd, 0.05)
    finally:
        os.close(fd)
        os.waitpid(pid, 0)
    return [row for row in told.read_text().splitlines()[:-1] if row]


def _read_some(fd: int, seconds: float) -> bytes:
    return os.read(fd, 65536) if select.select([fd], [], [], seconds)[0] else b""


def _read_until(fd: int, pattern: bytes, seconds: float = 30.0) -> None:
    end, said = time.monotonic() + seconds, b""
    while not re.search(pattern, said):
        assert time.monotonic() < end, said
        said += _read_some(fd, 0.2)


ASK = {"bash": bash, "zsh": zsh, "fish": fish}


def installed(shell: str) -> bool:
    return shutil.which(shell) is not None
