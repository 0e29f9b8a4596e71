"""Pages of docs/explanation, done as they say: files that they have one write are written and tested,
commands are typed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"


def files(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"```\w+ walkthrough:(\S+)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def talks(page: Path) -> list[tuple[str, str]]:
    return re.findall(
        r"```console walkthrough\n\$ diag (.*?)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    )


@pytest.mark.parametrize("name", ["write-a-detector", "write-a-source", "write-an-output"])
def test_the_code_of_the_page_passes_the_tests_of_the_page_and_the_rules_of_the_house(
    name: str, tmp_path: Path
) -> None:
    written = files(EXPLANATION / f"{name}.md")
    for file, text in written:
        (tmp_path / file).write_text(text)
    names = {file for file, _ in written}
    assert names and all(f"test_{name}" in names for name in names if not name.startswith("test_"))

    tested = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
                            cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    linted = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--config", ROOT / "pyproject.toml", tmp_path],
                            capture_output=True, text=True, check=False)  # fmt: skip

    assert tested.returncode == 0 and re.search(r"\d passed", tested.stdout), tested.stdout + tested.stderr
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("name", ["hang-verdict", "evidence"])
def test_commands_of_the_page_say_what_the_page_shows(name: str) -> None:
    shown = talks(EXPLANATION / f"{name}.md")
    assert shown

    for command, wanted in shown:
        words = [sys.executable, "-m", "diag", *shlex.split(command)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        said = " ".join((done.stdout + done.stderr).split())
        assert [line for line in wanted.splitlines() if line not in said] == [], f"{command}: {said[:2000]}"


def test_no_page_has_an_example_that_nobody_runs() -> None:
    tried = {"write-a-detector", "write-a-source", "write-an-output", "hang-verdict", "evidence", "rules"}
    with_examples = {
        page.stem
        for page in (ROOT / "docs").rglob("*.md")
        if re.search(r"^```\w+ walkthrough", page.read_text(), re.MULTILINE)
    }

    assert with_examples == tried
