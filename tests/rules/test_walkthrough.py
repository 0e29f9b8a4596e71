"""docs/rules.md, done as it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "rules.md").read_text()


def test_walk_through_works_as_it_is_written(tmp_path: Path) -> None:
    files = re.findall(r"```\w+ walkthrough:(\S+)\n(.*?)```", DOCUMENT, re.DOTALL)
    for name, text in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    talks = re.findall(r"```console walkthrough\n\$ diag (.*?)\n(.*?)```", DOCUMENT, re.DOTALL)
    assert len(files) == 2 and len(talks) == 2

    for command, wanted in talks:
        words = [sys.executable, "-m", "diag", *shlex.split(command)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        said = " ".join((done.stdout + done.stderr).split())
        for line in wanted.splitlines():
            assert line in said, f"{command}: {done.stdout}{done.stderr}"


def test_every_key_of_a_rule_is_documented() -> None:
    from diag.detectors.rules.schema import Example, Pattern, Rule, Silent, Translation

    for model in (Rule, Pattern, Example, Silent, Translation):
        for name, field in model.model_fields.items():
            assert f"`{field.alias or name}`" in DOCUMENT, f"{name} of {model.__name__}"
