"""The table of what `diag doctor --manifest` reports: each row is used, and states what a line of doctor needs."""

from __future__ import annotations

import re
import string
from pathlib import Path

import diag.preflight.manifest
from diag.preflight.line import table
from tests.test_docs import FINDING_IDS

ROWS = table("manifest")["lines"]
FOLDER = Path(diag.preflight.manifest.__file__).parent
CODE = "\n".join(path.read_text() for path in sorted(FOLDER.glob("*.py")))


def test_each_row_is_complete() -> None:
    for key, row in ROWS.items():
        (status,) = set(row) & {"problem", "critical", "note", "not checked", "ok"}
        assert set(row) <= {"what", status, "do", "id"} and row[status], key
        assert row.get("id", "") in {"", *FINDING_IDS}, key
        assert "id" in row or status not in ("problem", "critical"), f"{key}: a problem without a finding"
        for part in (status, "do"):
            fields = [
                name for _, name, _, _ in string.Formatter().parse(row.get(part, "")) if name is not None
            ]
            assert all(name.isidentifier() for name in fields), f"{key}: {fields}"


def test_the_code_and_the_table_have_the_same_rows() -> None:
    assert [key for key in ROWS if f'"{key}"' not in CODE and f'manifest.{key}"' not in CODE] == []
    assert set(re.findall(r'report\([^"]*?, "(\w+)"', CODE)) <= set(ROWS)


def test_each_way_that_a_pod_gets_its_number_is_that_of_a_kind() -> None:
    assert all(f'"{index}"' in CODE for index in table("manifest")["node_rank"])
