"""The wheel and the sdist, and `diag` installed from the wheel into an environment without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import diag

ROOT = Path(__file__).parents[1]
LOG = ROOT / "tests" / "captures" / "logs" / "elastic_2.13.log"
DATA = ("rules", "dashboards", "deploy")
HEAVY = {
    "torch",
    "pydantic",
    "pydantic_settings",
    "fastapi",
    "uvicorn",
    "starlette",
    "psutil",
    "prometheus_client",
    "pynvml",
    "asyncio",
}


def test_importing_diag_loads_nothing_but_itself() -> None:
    code = "import sys; before = set(sys.modules); import diag; print(*sorted(set(sys.modules) - before))"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == ["diag"]


@pytest.mark.parametrize(
    "module",
    [
        "diag.engine.engine",
        "diag.model",
        "diag.model.observations",
        "diag.detectors",
        "diag.engine.replay",
        "diag.agent.sidecar",
        "diag.cli.main",
    ],
)
def test_judging_and_reading_need_no_library(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.split() == []


class Installed:
    """What was built, and the environment that the wheel was installed into."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "venv" / "bin" / "python"
        self.diag = folder / "venv" / "bin" / "diag"
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "DIAG_", "VIRTUAL_ENV"))
        }
        self.folder = folder
        venv.create(folder / "venv", with_pip=True)
        self.pip("install", "--quiet", "hatchling", "PyYAML")
        self.call(
            self.python,
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "-t",
            "sdist",
            "-d",
            folder / "dist",
            cwd=ROOT,
        )
        (self.wheel,) = (folder / "dist").glob("*.whl")
        (self.sdist,) = (folder / "dist").glob("*.tar.gz")
        self.pip("install", "--quiet", self.wheel)

    def pip(self, *words: object) -> None:
        done = self.call(self.python, "-m", "pip", "--disable-pip-version-check", *words, check=False)
        if done.returncode != 0 and "No matching distribution" in done.stderr + done.stdout:
            pytest.skip("the package index cannot be reached")
        assert done.returncode == 0, done.stderr

    def call(
        self, *words: object, cwd: Path | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in words],
            capture_output=True,
            text=True,
            cwd=cwd or self.folder,
            env=self.env,
            check=check,
            timeout=240,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    yield Installed(tmp_path_factory.mktemp("package"))


def tracked(*folders: str) -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return {line for line in done.stdout.splitlines() if (ROOT / line).exists()}


@pytest.mark.live
@pytest.mark.xdist_group("packaging")
def test_wheel_has_the_code_and_its_data_and_no_tests(installed: Installed) -> None:
    names = {name for name in zipfile.ZipFile(installed.wheel).namelist() if ".dist-info/" not in name}

    assert {f"diag/_data/{name}" for name in tracked(*DATA)} <= names
    assert tracked("diag", "diag_job") <= names
    script = f"diag-{diag.__version__}.data/scripts/diag"
    others = names - {script}
    assert not [
        name
        for name in others
        if not name.startswith(("diag/", "diag_job/")) or "test" in Path(name).parts[0] or "captures" in name
    ]
    assert zipfile.ZipFile(installed.wheel).getinfo(script).external_attr >> 16 & 0o111
    assert zipfile.ZipFile(installed.wheel).getinfo("diag/py.typed")


@pytest.mark.live
@pytest.mark.xdist_group("packaging")
def test_sdist_has_what_it_takes_to_build_and_test(installed: Installed) -> None:
    with tarfile.open(installed.sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}

    assert tracked("diag", "diag_job", "tests", "docs", *DATA) <= names
    assert {
        "pyproject.toml",
        "README.md",
        "CONTRIBUTING.md",
        "DECISIONS.md",
        "LICENSE",
        "Makefile",
        "CHANGELOG.md",
        "mkdocs.yml",
    } <= names
    assert not [name for name in names if name.startswith((".git/", ".venv", ".ci"))]


@pytest.mark.live
@pytest.mark.xdist_group("packaging")
def test_installed_diag_works_without_torch(installed: Installed) -> None:
    # given an environment into which only the wheel was installed
    assert installed.call(installed.python, "-c", "import torch", check=False).returncode != 0

    # when it is used
    version = installed.call(installed.diag, "--version")
    replay = installed.call(installed.diag, "replay", "--json", LOG, check=False)
    doctor = installed.call(installed.diag, "doctor", "--json", check=False)

    # then it works, and runs the installed code
    assert version.stdout == f"diag {diag.__version__}\n"
    assert json.loads(replay.stdout)["schema"] == "diag.report/1" and replay.returncode in (0, 10), (
        replay.stderr
    )
    assert json.loads(doctor.stdout)["job"]["phase"] == "preflight" and doctor.returncode in (0, 10), (
        doctor.stderr
    )
    where = installed.call(installed.python, "-c", "import diag; print(diag.__file__)")
    assert where.stdout.startswith(str(installed.folder))


@pytest.mark.live
@pytest.mark.xdist_group("packaging")
def test_installed_diag_runs_a_command_and_returns_its_code(installed: Installed, tmp_path: Path) -> None:
    done = installed.call(
        installed.diag,
        "run",
        "-q",
        "--no-http",
        "--run-root",
        tmp_path,
        "--",
        "sh",
        "-c",
        "echo out; exit 7",
        check=False,
    )

    assert (done.returncode, done.stdout) == (7, "out\n"), done.stderr


@pytest.mark.live
@pytest.mark.xdist_group("packaging")
@pytest.mark.parametrize(("lang", "words"), [("en", "What to do:"), ("zh", "怎么办：")])
def test_installed_diag_has_the_pages_of_both_languages(installed: Installed, lang: str, words: str) -> None:
    # given an id whose English page comes from its detector, and one that only its files tell
    for finding in ("hang", "io-blocked"):
        page = installed.call(installed.diag, "explain", finding, "--lang", lang)

        assert words in page.stdout
        assert page.stderr == ""


@pytest.mark.live
@pytest.mark.xdist_group("packaging")
def test_one_file_is_all_that_a_machine_with_python_needs(installed: Installed, tmp_path: Path) -> None:
    # given the file, made for this Python and machine alone
    pytest.importorskip("pex", reason="pip install pex")
    one = tmp_path / "diag.pyz"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    build = ROOT / "deploy" / "onefile" / "build.py"
    words = ["-o", one, "--python", version, "--machine", os.uname().machine]
    done = subprocess.run(
        [sys.executable, str(build), str(installed.wheel), *map(str, words)],
        env={**os.environ, "PEX_ROOT": str(tmp_path / "pex")},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr

    # when it is used by somebody who has nothing else
    environment = {"PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path / "home")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(one), *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )  # fmt: skip

    # then it reads evidence, and runs a command with diag beside it
    said = run("--version")
    assert said.stdout == f"diag {diag.__version__}\n", said.stderr
    assert json.loads(run("replay", "--json", str(LOG)).stdout)["schema"] == "diag.report/1"
    ran = run(
        "run", "-q", "--no-http", "--run-root", str(tmp_path / "runs"), "--", "sh", "-c", "echo out; exit 7"
    )
    assert (ran.returncode, ran.stdout) == (7, "out\n"), ran.stderr
