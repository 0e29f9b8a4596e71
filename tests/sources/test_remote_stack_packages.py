"""Packages that were installed beside nothing of an interpreter: told from the program's own code by pip's own list."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diag.sources.stacks import remote_stack
from diag.state.own_code import is_own_file
from tests.inject.targets import Target, plain_env
from tests.sources.remote_stacks import KNOWN, sample, until_asleep

MODULE = "import sys\ndef stands():\n    print('ready', flush=True)\n    sys.stdin.read()\n"


def files_of(folder: Path) -> list[str]:
    (folder / "feed").mkdir(parents=True)
    (folder / "feed" / "__init__.py").write_text("")
    (folder / "feed" / "channel.py").write_text(MODULE)
    code = "from feed.channel import stands\nstands()"
    with Target(code, plain_env(PYTHONPATH=f"/nowhere:{folder}")) as rank:
        until_asleep(rank.pid)
        main = sample(remote_stack.RemoteStacks().dump(rank.pid, 20.0)).main
    assert main is not None
    return [frame.file for frame in main.frames]


def installed(folder: Path, record: str) -> None:
    (folder / "feed-1.0.dist-info").mkdir(parents=True)
    (folder / "feed-1.0.dist-info" / "RECORD").write_text(record)


needs_known = pytest.mark.skipif(
    sys.version_info[:2] not in KNOWN, reason="an interpreter that diag reads by itself"
)


@needs_known
def test_file_of_an_installed_package_is_named_as_an_import_would(tmp_path: Path) -> None:
    installed(
        tmp_path, "feed/__init__.py,sha256=x,0\nfeed/channel.py,sha256=y,80\nfeed-1.0.dist-info/RECORD,,\n"
    )
    files = files_of(tmp_path)

    assert files[-1] == "feed/channel.py" and not is_own_file(files[-1])


@needs_known
@pytest.mark.parametrize("record", ["", "other/__init__.py,,\nother-1.0.dist-info/RECORD,,\n"])
def test_file_that_no_list_has_stays_the_programs_own(tmp_path: Path, record: str) -> None:
    if record:
        installed(tmp_path, record)
    files = files_of(tmp_path)

    assert files[-1] == f"{tmp_path}/feed/channel.py" and is_own_file(files[-1])
