"""diag.toml of the working directory: only where this user or root wrote it, and of it only what the command
may take from it.

A folder may be another's, or come out of a stranger's archive; a file that is obeyed in it opens ports, names
passwords and says where to write. Who may have written it is asked of the open file, as git, ssh and sudo do,
not of its name.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diag.text.errors import DiagError
from diag.text.units import format_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "diag.toml"
# What a diag.toml beside evidence is read for (replay, explain): the language, and which rules. Others open a
# door (host, port, http, nodes, token, token_file, tls_*), write or read elsewhere (sd_file, run_root) or are
# of a job, which evidence has not.
OF_EVIDENCE = frozenset({"lang", "rules"})

_MOST_LINKS = 40
_MOST_BYTES = 1 << 20
_HINT = "make it yours (chown, chmod go-w) or remove it; flags and DIAG_* variables apply in any case"


class RefusedFile(DiagError):
    """Somebody else can write what it says."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{Path.cwd() / NAME} is ignored: {why}", hint=_HINT, exit_code=2)


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """`values` are taken; `left` names the settings in it that this command does not take from a file."""

    path: Path
    values: dict[str, Any]
    left: tuple[str, ...] = ()

    def only(self, take: Collection[str], known: Collection[str]) -> SettingsFile:
        """Keys that are no setting stay, to be complained of."""
        left = tuple(sorted(name for name in self.values if name in known and name not in take))
        return replace(
            self, values={name: value for name, value in self.values.items() if name not in left}, left=left
        )


def read_settings_file(name: str = NAME) -> SettingsFile | None:
    """None where there is none. Raises RefusedFile; OSError, ValueError or RecursionError where it cannot be
    read."""
    fd = _open(name)
    if fd is None:
        return None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        if why := _why_refused(found):
            raise RefusedFile(why)
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has more than {format_bytes(_MOST_BYTES)}")
    return SettingsFile(Path.cwd() / name, tomllib.loads(text.decode()))


def _open(name: str) -> int | None:
    """Links are followed one by one: each has an owner, too."""
    for _ in range(_MOST_LINKS):
        try:
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                if why := _why_refused(os.stat(name)):  # noqa: PTH116 - beside os.open
                    raise RefusedFile(why) from None
                raise
        link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(link)
            if found.st_uid not in (0, os.geteuid()):
                raise RefusedFile(f"it is a link owned by {_user(found.st_uid)}")
            if stat.S_ISLNK(found.st_mode):
                name = os.path.join(os.path.dirname(name), os.readlink("", dir_fd=link))  # noqa: PTH120 - as above
        finally:
            os.close(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _why_refused(found: os.stat_result) -> str:
    """Empty where only its owner can write it, and that is this user or root."""
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to {_user(found.st_uid)}, not to {_user(os.geteuid())}"
    if found.st_mode & stat.S_IWOTH:
        return "all users can write it"
    if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid, found.st_uid):
        return f"its group {found.st_gid} can write it"
    return ""


def _is_private_group(gid: int, uid: int) -> bool:
    """The user's own, which has no other member: with it goes umask 002 on many machines (Debian's ssh
    judges alike)."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and user.pw_gid == gid and not set(group.gr_mem) - {user.pw_name}


def _user(uid: int) -> str:
    import pwd

    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"
