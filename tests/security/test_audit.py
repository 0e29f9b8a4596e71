"""The audit asks about what diag needs and nothing else, and is never green where nothing was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.security.audit import NOT_CHECKED, Answer, audit, closure, requirements

ROOT = Path(__file__).parents[2]
PACKAGES = {"h11": "0.16.0", "uvicorn": "0.54.0"}


def answer(**faults: list[dict[str, object]]) -> str:
    return json.dumps({"dependencies": [{"name": name, "version": version, "vulns": faults.get(name, [])}
                                        for name, version in PACKAGES.items()]})  # fmt: skip


def test_audit_is_of_diags_own_packages_and_not_of_the_jobs() -> None:
    found = closure(requirements())

    assert {
        "fastapi",
        "starlette",
        "uvicorn",
        "h11",
        "pydantic-core",
        "py-spy",
        "google-re2",
        "textual",
    } <= set(found)
    assert not {"torch", "numpy", "transformers", "pytest", "ruff", "mkdocs", "httpx", "ms-swift"} & set(
        found
    )


@pytest.mark.parametrize("said, code, words", [
    ((0, answer(), ""), 0, "2 packages, 0 known faults"),
    ((1, answer(h11=[{"id": "PYSEC-1", "fix_versions": ["0.17"]}]), ""), 1, "h11 0.16.0: PYSEC-1, mended in 0.17"),
    ((1, answer(h11=[{"id": "GHSA-x", "fix_versions": []}]), ""), 1, "mended in no version"),
    ((1, "", "ERROR:pip_audit._cli:Connection refused\n"), NOT_CHECKED, "Connection refused"),
    ((0, '{"dependencies": [{"name": "h11", "skip_reason": "not found on PyPI"}]}', ""), NOT_CHECKED, "h11, uvicorn"),
    ((0, "{}", ""), NOT_CHECKED, "could not be asked"),
    ((1, "", ""), NOT_CHECKED, "it said nothing"),
])  # fmt: skip
def test_what_was_not_asked_is_not_green(
    said: Answer, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(PACKAGES, lambda packages, database: said) == code

    printed = capsys.readouterr()
    assert words in printed.out + printed.err
    assert ("NOT CHECKED" in printed.err) == (code == NOT_CHECKED)


def test_second_database_is_asked_where_the_first_does_not_answer() -> None:
    def ask(packages: Mapping[str, str], database: str) -> Answer:
        return (0, answer(), "") if database == "osv" else (1, "", "no route")

    assert audit(PACKAGES, ask) == 0


# --- ranges
# ----------------------------------------------------------------------------------------------------


def test_lowest_versions_that_are_tried_are_those_that_are_allowed() -> None:
    lowest = [
        Requirement(line)
        for line in (ROOT / "requirements/lowest.txt").read_text().splitlines()
        if line[:1] not in "#"
    ]
    tried = {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in lowest}
    text = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    allowed = [Requirement(each) for each in re.findall(r"^    \"(.*)\",$", block[1], re.MULTILINE)]

    assert set(tried) == {canonicalize_name(each.name) for each in allowed}
    for each in allowed:
        bounds = [bound.version for bound in each.specifier if bound.operator == ">="]
        assert len(bounds) == 1, f"{each} has no lower bound"
        version = tried[canonicalize_name(each.name)]
        # The oldest release there is within the bound: 12.535.77 for 12.535.
        assert Version(version) >= Version(bounds[0]) and (version + ".").startswith(bounds[0] + "."), each
