"""The table of what `diag doctor --manifest` reports: each row is used, and states what a line of doctor needs."""

from __future__ import annotations

import re
import string

from diag.preflight.manifest.job import MESSAGES
from diag.text.tables import load_table
from tests.test_docs import FINDING_IDS

ROWS = load_table(MESSAGES)["messages"]
CODE = "\n".join(path.read_text() for path in sorted(MESSAGES.parent.glob("*.py")))


def test_each_row_is_complete() -> None:
    for key, row in ROWS.items():
        assert set(row) <= {"text", "remedy", "status", "id", "severity"} and row["text"], key
        assert row.get("status", "problem") in ("problem", "note", "not checked"), key
        assert row.get("severity", "warning") in ("warning", "critical"), key
        assert row.get("id", "") in {"", *FINDING_IDS}, key
        assert "id" in row or row["status"] != "problem", f"{key}: a problem without a finding"
        for part in ("text", "remedy"):
            fields = [
                name for _, name, _, _ in string.Formatter().parse(row.get(part, "")) if name is not None
            ]
            assert all(name.isidentifier() for name in fields), f"{key}: {fields}"


def test_the_code_and_the_table_have_the_same_rows() -> None:
    assert [key for key in ROWS if f'"{key}"' not in CODE] == []
    assert set(re.findall(r'report\([^"]*?, "(\w+)"', CODE)) <= set(ROWS)


def test_each_way_that_a_pod_gets_its_number_is_that_of_a_kind() -> None:
    assert all(f'"{index}"' in CODE for index in load_table(MESSAGES)["node_rank"])
