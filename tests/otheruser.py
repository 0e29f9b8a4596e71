"""Processes of another user, or in another root, and a folder with what they may and may not read."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

__all__ = ["NOBODY", "Start", "as_root", "place", "start"]

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start what belongs to another user")
Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """A process as `uid` with the root folder `root`, and files of its own as 0, 1 and 2; gives its pid."""
    children = []

    def started(
        uid: int = NOBODY,
        root: str = "/",
        groups: tuple[int, ...] = (),
        redirect: str = "",
        env: dict[str, str] | None = None,
    ) -> int:
        ready, told = os.pipe()
        hold, go_on = os.pipe()
        code = (
            f"import os\n{redirect}\nos.chroot({root!r}); os.chdir('/')\nos.setgroups({list(groups)}); os.setgid({uid})\n"
            f"os.setuid({uid}); os.write({told}, b'x')\nos.read({hold}, 1)\n"
        )
        child = subprocess.Popen([sys.executable, "-I", "-c", code], pass_fds=(hold, told), env=env)
        os.close(told)
        os.close(hold)
        children.append((child, go_on))
        assert os.read(ready, 1) == b"x"
        os.close(ready)
        return child.pid

    yield started
    for child, go_on in children:
        os.close(go_on)
        child.wait()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter, as pytest's own is not, with a secret of root's and a log of
    nobody's in it."""
    with tempfile.TemporaryDirectory(prefix="place-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "secret").write_text("of root alone")
        (folder / "secret").chmod(0o600)
        (folder / "log").write_text("step 1")
        os.chown(folder / "log", NOBODY, NOBODY)
        (folder / "link").symlink_to("log")
        (folder / "trap").symlink_to(folder / "secret")
        yield folder
