"""The token of a job: from a file, and the warning about one that others may read.

Without imports that `diag dump` would wait for.
"""

from __future__ import annotations

import os
import stat
import sys

from diag.text.errors import DiagError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

SHORTEST = 16  # characters: of hexadecimal ones 64 bits, beyond guessing at some thousand tries a second
_LONGEST = 4096  # bytes; of such a file all is read
WHERE = "give --token-file FILE or DIAG_TOKEN (run.json has it)"
_warned: set[str] = set()


def options(parser: argparse.ArgumentParser) -> None:
    """Those of a command that asks a hub."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the bearer token of an endpoint beyond loopback (default: DIAG_TOKEN, DIAG_TOKEN_FILE)",
    )
    parser.add_argument(
        "--token", metavar="TOKEN", help="the token itself; visible to all users of this machine in ps"
    )


def read_token(path: str, *, hint: str = "token_file, DIAG_TOKEN_FILE") -> str:
    """The content of the file, without white space around it. A line on stderr names who else can read it.
    Raises DiagError."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_LONGEST + 1)
        token = data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DiagError(f"the token in {path} cannot be read: {error}", hint=hint, exit_code=2) from None
    if not token:
        raise DiagError(f"{path} does not hold a token: it is empty", hint=hint, exit_code=2)
    if len(data) > _LONGEST or len(token.split()) > 1:
        raise DiagError(
            f"{path} does not hold a token: it contains more than one word", hint=hint, exit_code=2
        )
    others = _others(path, found)
    if others:
        _warn(f"diag: the token in {path} can be read by {others}: chmod 600 {path}")
    return token


def warn_of_arguments() -> None:
    _warn(
        "diag: --token shows the token to all users of this machine (ps): give --token-file FILE or DIAG_TOKEN"
    )


def _warn(line: str) -> None:
    if line not in _warned:
        _warned.add(line)
        print(line, file=sys.stderr)


def _others(path: str, found: os.stat_result) -> str:
    """Who but its owner can read it, all folders above it considered. Not of pipes; nor of what is mounted
    read-only, as Kubernetes does with secrets: there the mode cannot be changed, and no other user is in the
    container."""
    allowed = stat.S_IMODE(found.st_mode) & (stat.S_IRGRP | stat.S_IROTH)
    if not stat.S_ISREG(found.st_mode) or not allowed:
        return ""
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return ""
        folder = os.path.dirname(os.path.realpath(path))  # noqa: PTH120 - pathlib is what `diag dump` would wait for
        while allowed and folder != "/":
            mode = os.stat(folder).st_mode  # noqa: PTH116
            allowed &= (stat.S_IRGRP if mode & stat.S_IXGRP else 0) | (
                stat.S_IROTH if mode & stat.S_IXOTH else 0
            )
            folder = os.path.dirname(folder)  # noqa: PTH120
    except OSError:
        return ""
    return "all users of this machine" if allowed & stat.S_IROTH else "its group" if allowed else ""
