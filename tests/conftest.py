"""What several test folders share: making records and observations, real captured evidence."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from tests.cgroups import memory_cgroup
from tests.leftovers import described, end_all, started
from tests.otheruser import place, start  # noqa: F401 - fixtures
from tests.sentences import watched

# A shell ignores these for what it starts in the background, and processes hand that down: to the commands that tests
# interrupt.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

CAPTURES = Path(__file__).parent / "captures"
_MARK = "STARTED_BY_TESTS"  # the variable that all processes of one session of pytest (of one worker of xdist) inherit
_ENDING_SECONDS = 20.0


_FACES = ("browser", "top", "site", "guide", "cli")
_HARDENING = ("fuzz", "harm", "security", "soak")
_RACING_FOLDERS = ("browser", "harm", "top")
_RACING_MARKS = ("cluster", "live", "matrix", "real_job")
_STARTERS = ("multiprocessing", "subprocess", "torch.multiprocessing")


def pytest_configure(config: pytest.Config) -> None:
    """Before modules of tests are imported: some keep an environment for what they start. Examples of hypothesis take as
    long as what else runs here lets them, and are the same in each run: `make properties` tries others."""
    os.environ[_MARK] = uuid.uuid4().hex
    with contextlib.suppress(ImportError):
        from hypothesis import settings

        settings.register_profile("same", deadline=None, derandomize=True)
        settings.register_profile("new", deadline=None, print_blob=True)
        settings.load_profile(os.environ.get("EXAMPLES", "same"))


@pytest.fixture(scope="session", autouse=True)
def nothing_lives_on() -> Iterator[None]:
    """Fails at the end of the session for what its tests left running, with their names; and ends it."""
    mark = os.environ[_MARK]
    yield
    until = time.monotonic() + _ENDING_SECONDS
    while (
        left := [process for process in started(_MARK, mark) if not _is_pythons(process)]
    ) and time.monotonic() < until:
        time.sleep(0.1)  # on its way out
    told = "\n".join(map(described, left))
    end_all(_MARK, mark)
    assert not left, f"tests left processes running:\n{told}"


@pytest.fixture(autouse=True)
def sentences_are_true() -> Iterator[None]:
    """Every finding that a test's engine comes to is held against what no sentence may say."""
    with watched():
        yield


def _is_pythons(process: psutil.Process) -> bool:
    """The helper of a process that used multiprocessing, which lives as long as that one."""
    with contextlib.suppress(psutil.Error):
        return process.ppid() == os.getpid() and "multiprocessing.resource_tracker" in " ".join(
            process.cmdline()
        )
    return False


@pytest.fixture
def captures() -> Path:
    return CAPTURES


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A real memory cgroup of 48 MiB."""
    with memory_cgroup(48 << 20) as directory:
        yield directory


def pytest_itemcollected(item: pytest.Item) -> None:
    """What people see has a target of its own (`make test-faces`), and what is done to diag itself (`make
    test-hardening`)."""
    tests, path = CAPTURES.parent, Path(item.path)
    parts = path.relative_to(tests).parts if tests in path.parents else ()
    folder = parts[1] if parts[:1] == ("labs",) else parts[0] if parts else ""
    if folder in _FACES:
        item.add_marker("faces")
    elif folder in _HARDENING:
        item.add_marker("hardening")
    # Real processes race with whatever else this machine does: what fails is run once more, and shown (DECISIONS 202).
    module = getattr(item, "module", None)
    if (
        folder in _RACING_FOLDERS
        or any(map(item.get_closest_marker, _RACING_MARKS))
        or (module is not None and _starts_processes(module.__name__))
    ):
        item.add_marker(pytest.mark.flaky(reruns=1))


@cache
def _starts_processes(name: str) -> bool:
    """Whether a module of tests, or one of tests that it takes something from, has `subprocess` or its like."""
    held = list(vars(sys.modules[name]).values())
    if any(isinstance(one, ModuleType) and one.__name__ in _STARTERS for one in held):
        return True
    from_others = {getattr(one, "__module__", None) or "" for one in held if not isinstance(one, ModuleType)}
    return any(
        other.startswith("tests.") and other != name and other in sys.modules and _starts_processes(other)
        for other in from_others - {name}
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why the first try of a test failed whose second try is what counts."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one group share a system (podman's storage, a mount, a job's port). pytest 9.2.0 leaves them
    in different workers without a word: xdist 3.8.0 marks a test's group in its node id, which that pytest
    does not let it change."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        if any(item.iter_markers("xdist_group")) and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"pytest {pytest.__version__} and this pytest-xdist do not keep groups of tests together"
            )
