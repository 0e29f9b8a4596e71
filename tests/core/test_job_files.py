"""Files that a job names are opened with its rights and beneath its root: real users, real roots, real links."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.sources.host import file_rights
from diag.sources.host.file_rights import Rights, acting_as, open_beneath, rights_in, walk_beneath
from diag.sources.host.job_files import Files, JobFiles
from tests.otheruser import NOBODY, Start, as_root


@as_root
def test_what_the_rank_may_not_read_is_not_read_by_root_for_it(start: Start, place: Path) -> None:
    with JobFiles(start()) as files:
        assert files.read(str(place / "link"), 99) == b"step 1"
        for name in ("secret", "trap"):
            with pytest.raises(PermissionError):
                files.read(str(place / name), 99)
    assert (place / "secret").read_text() == "of root alone"  # we are ourselves again


@as_root
def test_groups_of_the_rank_count(start: Start, place: Path) -> None:
    os.chown(place / "secret", 0, 4711)
    (place / "secret").chmod(0o640)

    with JobFiles(start(groups=(4711,))) as member, JobFiles(start()) as stranger:
        assert member.read(str(place / "secret"), 99) == b"of root alone"
        with pytest.raises(PermissionError):
            stranger.read(str(place / "secret"), 99)


@as_root
def test_folder_that_is_closed_to_the_rank_is_not_listed(start: Start, place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    (place / "open").mkdir()
    (place / "open" / "iter_0000001").mkdir()

    with JobFiles(start()) as files:
        assert files.names(str(place / "open")) == ["iter_0000001"]
        with pytest.raises(PermissionError):
            files.names(str(place / "closed"))


@as_root
def test_our_own_rights_come_back(place: Path) -> None:
    def can_read() -> bool:
        try:
            return bool((place / "secret").read_bytes())
        except PermissionError:
            return False

    groups = os.getgroups()

    with acting_as(Rights(NOBODY, NOBODY, (4711,))) as acted:
        mine, here = can_read(), os.getgroups()

    assert acted and not mine and here == [4711] and can_read() and os.getgroups() == groups


@as_root
def test_thread_that_lives_beside_it_notices_nothing(place: Path) -> None:
    begun, go_on, read = threading.Event(), threading.Event(), []

    def other() -> None:
        begun.set()
        go_on.wait(30)
        read.append((place / "secret").read_text())

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(30)
    with acting_as(Rights(NOBODY, NOBODY, (4711,))):
        go_on.set()
        thread.join(30)

    assert read == ["of root alone"]


@as_root
@pytest.mark.parametrize("opener", [open_beneath, walk_beneath])
def test_links_stay_beneath_the_root(opener: Callable[..., int], tmp_path: Path) -> None:
    jail = tmp_path / "jail"
    (jail / "logs" / "deep").mkdir(parents=True)
    (jail / "etc").mkdir()
    (jail / "etc" / "passwd").write_text("of the jail")
    (tmp_path / "outside").write_text("of ours")
    (jail / "logs" / "absolute").symlink_to("/etc/passwd")
    (jail / "logs" / "upwards").symlink_to("../../../../etc/passwd")
    (jail / "logs" / "outside").symlink_to("../../outside")
    (jail / "logs" / "round").symlink_to("round")
    (jail / "logs" / "magic").symlink_to("/proc/self/exe")
    root = os.open(jail, os.O_PATH)

    def read(path: str, **options: Any) -> str:
        fd = opener(root, path, os.O_RDONLY | os.O_CLOEXEC, **options)
        try:
            return os.read(fd, 99).decode()
        finally:
            os.close(fd)

    for path in ("/etc/passwd", "/logs/absolute", "logs/upwards", "/logs/deep/../absolute"):
        assert read(path) == "of the jail", path
    assert read("../../etc/passwd", links=False) == "of the jail"
    for path, number in (
        ("/logs/outside", errno.ENOENT),
        ("/logs/round", errno.ELOOP),
        ("/logs/magic", errno.ENOENT),
        ("/logs/no/such", errno.ENOENT),
        ("/etc/passwd/x", errno.ENOTDIR),
    ):
        with pytest.raises(OSError) as error:
            read(path)
        assert error.value.errno == number, path
    with pytest.raises(OSError) as error:
        read("/logs/absolute", links=False)
    assert error.value.errno == errno.ELOOP
    before = len(os.listdir("/proc/self/fd"))
    held = opener(root, "/logs", os.O_PATH | os.O_DIRECTORY)
    assert os.listdir(f"/proc/self/fd/{held}") and len(os.listdir("/proc/self/fd")) == before + 1
    os.close(held)
    os.close(root)


def test_kernel_without_openat2_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text("step 1")
    monkeypatch.setattr(file_rights, "_OPENAT2", 100_000)  # ENOSYS
    root = os.open(tmp_path, os.O_PATH)

    fd = open_beneath(root, "/log", os.O_RDONLY)

    assert os.read(fd, 99) == b"step 1"
    os.close(fd)
    os.close(root)


@as_root
def test_rank_in_a_root_of_its_own_names_files_from_there(start: Start, place: Path) -> None:
    jail = place / "jail"
    (jail / "logs").mkdir(parents=True)
    (jail / "logs" / "out.log").write_text("step 1")
    (jail / "logs" / "trap").symlink_to(place / "secret")
    (jail / "logs" / "latest").symlink_to("/logs/out.log")

    with JobFiles(start(0, root=str(jail))) as files:  # a root user, as in most containers
        assert files.apart and not files.plain
        assert (
            files.read("/logs/latest", 99)
            == b"step 1"
            == files.read(files.inside(str(jail / "logs" / "out.log")), 99)
        )
        with pytest.raises(FileNotFoundError):
            files.read("/logs/trap", 99)


@as_root
def test_root_of_a_rank_that_has_ended_is_not_taken_for_ours(place: Path, start: Start) -> None:
    jail = place / "jail"
    jail.mkdir()
    (jail / "log").write_text("step 1")
    pid = start(0, root=str(jail))
    with JobFiles(pid) as files:
        assert files.read("/log", 99) == b"step 1"
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

        with pytest.raises(ProcessLookupError):
            files.read(str(place / "secret"), 99)


@as_root
def test_another_process_under_the_same_pid_is_not_taken_for_it(place: Path) -> None:
    """Its /proc folder is held: what was seen of the rank last holds, whoever has its number now."""
    child = subprocess.Popen(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "1000"])
    files = JobFiles(child.pid)
    while files.rights.uid == 0:
        files.look()
    child.kill()
    child.wait()
    files.look()

    assert files.gone and files.rights.uid == NOBODY
    with pytest.raises(PermissionError):
        files.read(str(place / "secret"), 99)
    assert files.read(str(place / "log"), 99) == b"step 1"
    files.close()


@as_root
def test_log_that_root_opened_for_the_rank_is_read(start: Start, place: Path) -> None:
    """`setpriv --reuid=nobody python train.py > /var/log/train.log` in root's shell: it may write there, and
    opened nothing."""
    pid = start(redirect=f"os.dup2(os.open({str(place / 'secret')!r}, os.O_WRONLY), 1)")

    with JobFiles(pid) as files:
        fd = files.open_printed(1)

    assert os.read(fd, 99) == b"of root alone"
    os.close(fd)


@as_root
@pytest.mark.parametrize(
    "mode, flags", [(0o600, "os.O_PATH"), (0o622, "os.O_WRONLY"), (0o600, "os.O_RDONLY")]
)
def test_descriptor_that_proves_no_right_to_read_is_not_read(
    start: Start, place: Path, mode: int, flags: str
) -> None:
    """Anybody gets O_PATH of any file that has a name; and a box that all may put letters into is not for all
    to read."""
    (place / "secret").chmod(mode)
    pid = start(redirect=f"os.dup2(os.open({str(place / 'secret')!r}, {flags}), 1)")

    with JobFiles(pid) as files, pytest.raises(PermissionError):
        files.open_printed(1)


@as_root
def test_without_the_right_to_act_as_the_rank_modes_decide(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diag without CAP_SETUID, such as one of a user of its own in a container with SYS_PTRACE."""
    (place / "closed").mkdir(mode=0o700)
    (place / "closed" / "for-all").write_text("behind a door")
    (place / "for-all").write_text("for all")
    (place / "group").write_text("for some")
    os.chown(place / "group", 0, 4711)
    (place / "group").chmod(0o640)
    monkeypatch.setattr(file_rights, "_can_drop", lambda: False)

    with JobFiles(start()) as files, JobFiles(start(groups=(4711,))) as member:
        assert (
            files.read(str(place / "link"), 99) == b"step 1"
            and files.read(str(place / "for-all"), 99) == b"for all"
        )
        assert member.read(str(place / "group"), 99) == b"for some"
        for name in ("secret", "trap", "closed/for-all", "group"):
            with pytest.raises(PermissionError, match="the rank may not open it"):
                files.read(str(place / name), 99)
        with pytest.raises(PermissionError):
            files.names(str(place / "closed"))
        with pytest.raises(PermissionError):
            files.stat(str(place / "closed" / "for-all"))


@as_root
@pytest.mark.parametrize("case", [(0o600, "os.O_WRONLY", True), (0o600, "os.O_PATH", False),
                                  (0o622, "os.O_WRONLY", False), (0o644, "os.O_PATH", True)])  # fmt: skip
def test_descriptor_of_the_rank_is_judged_by_modes_there_too(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[int, str, bool]
) -> None:
    mode, flags, is_read = case
    (place / "secret").chmod(mode)
    monkeypatch.setattr(file_rights, "_can_drop", lambda: False)
    pid = start(redirect=f"os.dup2(os.open({str(place / 'secret')!r}, {flags}), 1)")

    with JobFiles(pid) as files:
        if is_read:
            os.close(files.open_printed(1))
        else:
            with pytest.raises(PermissionError):
                files.open_printed(1)


def test_same_user_in_the_same_root_reads_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run5.log").write_text("step 1")
    (tmp_path / "latest.log").symlink_to("run5.log")
    monkeypatch.setattr(
        "diag.sources.host.job_files.acting_as",
        lambda rights: pytest.fail("nothing is to be done as somebody else"),
    )

    with JobFiles(os.getpid()) as files:
        assert files.plain and files.read(str(tmp_path / "latest.log"), 99) == b"step 1"
        assert files.readlink(str(tmp_path / "latest.log")) == "run5.log"
        assert files.read_text("no/such") is None and files.cwd() == str(Path.cwd())


def test_what_is_no_regular_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match="no regular file"):
        Files().read(str(tmp_path / "fifo"), 1)


def test_process_that_is_gone_is_an_error() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    with pytest.raises(OSError):
        JobFiles(gone.pid)
    with pytest.raises(OSError):
        rights_in(b"")
