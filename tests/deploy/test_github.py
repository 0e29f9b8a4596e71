""".github: the workflow runs what .ci/run runs; the forms ask for files and commands that diag has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / ".github").is_dir(), reason="not a checkout")


def test_workflow_runs_each_suite_that_a_submission_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())
    here = re.findall(r"^make (.+)$", (ROOT / ".ci" / "run").read_text(), re.M)

    assert workflow["jobs"]["suite"]["strategy"]["matrix"]["target"] == here
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert {words.split()[0] for words in here} <= set(targets)


def test_package_is_tried_on_each_python_that_it_is_said_to_run_on() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())
    said = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())

    assert workflow["jobs"]["package"]["strategy"]["matrix"]["python"] == said
