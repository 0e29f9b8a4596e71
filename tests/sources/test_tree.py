from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.sources.host.process_tree import Tree, descendants, is_python, read_environ, split_stat


@contextmanager
def python(code: str, **popen: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed its first line when we get it, and ends when its stdin does."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **popen
    )  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


# A child and a grandchild from the main thread, one child from another thread.
FAMILY = """
import subprocess, sys, threading
child = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
grandchild = child.stdout.readline().strip()
other, done = [], threading.Event()
def fork():
    other.append(subprocess.Popen(["sleep", "60"]))
    done.set()
    threading.Event().wait()
def more():
    global late
    late = subprocess.Popen(["sleep", "60"])
threading.Thread(target=fork, daemon=True).start()
done.wait()
print(child.pid, grandchild, other[0].pid, flush=True)
for command in sys.stdin:
    if command == "more\\n":
        late = subprocess.Popen(["sleep", "60"])
        print(late.pid, flush=True)
    if command == "end other\\n":
        other[0].kill(); other[0].wait()
        print("ended", flush=True)
"""


@contextmanager
def family() -> Iterator[tuple[subprocess.Popen[str], int, int, int]]:
    with python(FAMILY) as process:
        assert process.stdout is not None
        child, grandchild, other = map(int, process.stdout.readline().split())
        try:
            yield process, child, grandchild, other
        finally:
            for pid in descendants(process.pid):
                os.kill(pid, 9)


def tell(process: subprocess.Popen[str], command: str) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(command + "\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_descendants_are_all_below_whichever_thread_forked_them() -> None:
    with family() as (process, child, grandchild, other):
        found = descendants(process.pid)

        assert sorted(found) == sorted((child, grandchild, other))
        assert found.index(child) < found.index(grandchild)


def test_child_of_another_thread_stays_known_in_the_cheap_scans_until_it_ends() -> None:
    with family() as (process, child, grandchild, other):
        tree = Tree(process.pid)
        first, second = tree.scan(), tree.scan()
        tell(process, "end other")
        third = tree.scan()

        assert set(first) == set(second) == {child, grandchild, other}
        assert set(third) == {child, grandchild}


def test_new_child_of_the_main_thread_is_seen_at_the_next_scan() -> None:
    with family() as (process, *_):
        tree = Tree(process.pid)
        tree.scan()
        late = int(tell(process, "more"))

        assert late in tree.scan()


def test_kernel_without_children_files_gives_the_same_tree() -> None:
    with family() as (process, child, grandchild, other):
        tree = Tree(process.pid)
        tree._has_children_file = False

        assert set(tree.scan()) == {child, grandchild, other}


def test_kernel_without_children_files_is_noticed(tmp_path: Path) -> None:
    # given a /proc as a kernel without CONFIG_PROC_CHILDREN shows it: stat files only
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b (c)) S {parent} 0 0\n")
    (tmp_path / "14").mkdir()  # vanished between listing and reading
    (tmp_path / "15").mkdir()
    (tmp_path / "15" / "stat").write_text("torn")

    assert descendants(10, tmp_path) == (11, 12)


def test_pid_that_is_gone_has_no_descendants_and_no_environment() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert descendants(process.pid) == ()
    assert read_environ(process.pid) is None
    assert not is_python(process.pid)


def test_environment_is_the_one_it_was_started_with() -> None:
    with python(
        "print(flush=True); input()", env={**os.environ, "RANK": "3", "EMPTY": "", "ODD": "a=b"}
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        environ = read_environ(process.pid)

    assert environ is not None
    assert (environ["RANK"], environ["EMPTY"], environ["ODD"]) == ("3", "", "a=b")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_environment_and_program_of_another_user_are_not_guessed() -> None:
    # given a reader without rights on us: argv[0] is all it sees
    code = (
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from diag.sources.host.process_tree import is_python, read_environ\n"
        f"print(read_environ({os.getpid()}), is_python({os.getpid()}))"
    )
    home = str(Path(__file__).parents[2])
    # imports first: the checkout may lie where nobody may read
    code = "from diag.sources.host import process_tree as tree\n" + code
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": home},
    )

    argv0 = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    expected = Path(argv0).name.startswith("python")
    assert done.stdout == f"None {expected}\n", done.stderr


def test_python_is_told_from_other_programs_by_program_or_mapped_library(tmp_path: Path) -> None:
    # given a real Python, a shell, and a program that embeds libpython
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "exe").symlink_to("/opt/app/trainer")
    # maps of a program linked to the library, Debian 12:
    (tmp_path / "7" / "maps").write_text(
        "7f0e8c000000-7f0e8c100000 r-xp 00000000 fe:00 1234    /usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0\n"
    )
    shell = subprocess.Popen(["sleep", "60"])
    try:
        assert is_python(os.getpid())
        assert is_python(7, tmp_path)
        assert not is_python(shell.pid)
    finally:
        shell.kill()
        shell.wait()


@settings(deadline=None, max_examples=60)
@given(st.text())
def test_stat_line_is_split_or_refused(text: str) -> None:
    with suppress(ValueError):
        split_stat(text)
